"""The groups of this router that are in the fleet's queue: kept in order, summed up, never searched."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter

from router.core.session.session import Group, Phase
from scheduling.admission.admission import Verdict
from scheduling.admission.backlog import Backlog, Stake, Waiting
from scheduling.request import SloClass

LEAST_STALE = 64
"""Entries of a line that may be of groups which left, before the line is made anew."""


class WaitingGroups:
    """Who waits. A group is in at most once, and what is kept of it is what it was when it came in."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.by_tenant: dict[str, int] = {}
        self._groups: dict[str, tuple[Group, Waiting, int]] = {}
        """With how many came before."""
        self._came = 0
        self._paces_ms: list[int] = []
        self._lines: dict[SloClass, list[tuple[float, str]]] = {one: [] for one in SloClass}
        self._asked: list[tuple[float, str]] = []
        """A heap of when places were asked for; those asked for again since are dropped as they come up."""
        self._at_risk: dict[SloClass, list[tuple[int, str]]] = {one: [] for one in SloClass}
        """Their tokens and keys, ascending."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: Group) -> bool:
        return group.key in self._groups

    def __iter__(self) -> Iterator[Group]:
        return (group for group, _, _ in self._groups.values())

    def add(self, group: Group, now: float) -> None:
        """It asks for a place, or has one."""
        assert group.key not in self._groups, "a group waits once"
        session = group.session
        one = Waiting(group.key, session.slo.slo_class, group.due_at, group.work_tokens, _stake_of(group))
        self._came += 1
        self._groups[group.key] = group, one, self._came
        self.backlog.add(one, now)
        self.by_tenant[session.tenant] = self.by_tenant.get(session.tenant, 0) + 1
        if session.aim.pace_ms is not None:
            insort(self._paces_ms, session.aim.pace_ms)
        self._stand_in_line(one)
        self.asked(group)
        if one.stake is Stake.AT_RISK:
            insort(self._at_risk[one.slo_class], (one.tokens, one.key))

    def _stand_in_line(self, one: Waiting) -> None:
        line = self._lines[one.slo_class]
        heapq.heappush(line, (one.due_at, one.key))
        if len(line) > LEAST_STALE + 2 * self.backlog.requests_of(one.slo_class):
            # Only from its own class: other classes may have many more waiting requests.
            line[:] = [entry for entry in dict.fromkeys(line) if self._stands(entry)]
            heapq.heapify(line)

    def _stands(self, entry: tuple[float, str]) -> bool:
        """Return whether an entry of a line is still current for a waiting group."""
        due_at, key = entry
        found = self._groups.get(key)
        return found is not None and found[1].due_at == due_at

    def asked(self, group: Group) -> None:
        """It has asked for its place as of `group.asked_at`."""
        heapq.heappush(self._asked, (group.asked_at, group.key))

    def take_unheard(self, now: float, least_s: float, most: int) -> list[Group]:
        """At most so many of those that have a place and asked for it so long ago, first who asked first.

        In the order they came; each is told once for each time it has asked.
        """
        asked, kept = self._asked, []
        due: dict[str, tuple[Group, Waiting, int]] = {}
        while asked and len(due) < most and now - asked[0][0] >= least_s:
            at, key = heapq.heappop(asked)
            found = self._groups.get(key)
            if found is None or found[0].asked_at != at or key in due:
                continue
            if found[0].phase is Phase.WAITING:
                due[key] = found
            else:
                kept.append((at, key))
        for one in kept:
            heapq.heappush(asked, one)
        return [group for group, _, _ in sorted(due.values(), key=itemgetter(2))]

    def remove(self, group: Group) -> None:
        """It waits no longer."""
        _, one, _ = self._groups.pop(group.key)
        self.backlog.remove(one)
        if one.stake is Stake.AT_RISK:
            line = self._at_risk[one.slo_class]
            del line[bisect_left(line, (one.tokens, one.key))]
        tenant, pace_ms = group.session.tenant, group.session.aim.pace_ms
        self.by_tenant[tenant] -= 1
        if self.by_tenant[tenant] == 0:
            del self.by_tenant[tenant]
        if pace_ms is not None:
            del self._paces_ms[bisect_left(self._paces_ms, pace_ms)]

    @property
    def entries(self) -> Iterator[Waiting]:
        """All of them, as plans see them."""
        return (one for _, one, _ in self._groups.values())

    @property
    def head(self) -> Group | None:
        """Who of this router goes first."""
        return next((head for one in SloClass if (head := self.head_of(one)) is not None), None)

    def head_of(self, slo_class: SloClass) -> Group | None:
        """Who of one class goes first."""
        line = self._lines[slo_class]
        while line:
            if self._stands(line[0]):
                return self._groups[line[0][1]][0]
            heapq.heappop(line)
        return None

    @property
    def has_at_risk(self) -> bool:
        """Somebody may be let go."""
        return any(self._at_risk.values())

    def largest_at_risk(self, slo_class: SloClass) -> Group | None:
        """Of those of one class that may be let go; of equals the one with the last key."""
        line = self._at_risk[slo_class]
        return self._groups[line[-1][1]][0] if line else None

    @property
    def tightest_pace_ms(self) -> int | None:
        """The least time between tokens that any of them asks for."""
        return self._paces_ms[0] if self._paces_ms else None


def _stake_of(group: Group) -> Stake:
    """What letting it go would mean. What was started is not let go."""
    session = group.session
    decision = session.decision
    if decision is None or session.aim.ttft_ms is None or group.later_s > 0 or session.is_started:
        return Stake.NONE
    return Stake.ACCEPTED if decision.verdict is Verdict.ACCEPTED else Stake.AT_RISK
