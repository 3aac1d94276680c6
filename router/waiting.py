"""The groups of this router that are in the fleet's queue: kept in order, summed up, never searched."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator

from router.sessions import Group
from scheduling.admission import Verdict
from scheduling.backlog import Backlog, Stake, Waiting
from scheduling.request import SloClass


class WaitingGroups:
    """Who waits. A group is in at most once, and what is kept of it is what it was when it came in."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.by_tenant: dict[str, int] = {}
        self._groups: dict[str, tuple[Group, Waiting]] = {}
        self._paces_ms: list[int] = []
        self._lines: dict[SloClass, list[tuple[float, str]]] = {one: [] for one in SloClass}
        self._at_risk: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return (group for group, _ in self._groups.values())

    def add(self, group: Group, now: float) -> None:
        """It asks for a place, or has one."""
        assert group.key not in self._groups, "a group waits once"
        session = group.session
        one = Waiting(group.key, session.slo.slo_class, group.due_at, group.work_tokens, _stake_of(group))
        self._groups[group.key] = group, one
        self.backlog.add(one, now)
        self.by_tenant[session.tenant] = self.by_tenant.get(session.tenant, 0) + 1
        if session.slo.pace_ms is not None:
            insort(self._paces_ms, session.slo.pace_ms)
        heapq.heappush(self._lines[one.slo_class], (one.due_at, group.key))
        if one.stake is Stake.AT_RISK:
            self._at_risk[group.key] = group

    def remove(self, group: Group) -> None:
        """It waits no longer."""
        _, one = self._groups.pop(group.key)
        self.backlog.remove(one)
        self._at_risk.pop(group.key, None)
        tenant, pace_ms = group.session.tenant, group.session.slo.pace_ms
        self.by_tenant[tenant] -= 1
        if self.by_tenant[tenant] == 0:
            del self.by_tenant[tenant]
        if pace_ms is not None:
            del self._paces_ms[bisect_left(self._paces_ms, pace_ms)]

    def promised(self, group: Group, now: float) -> None:
        """What it was promised counts from now on."""
        if group.key in self._groups:
            self.remove(group)
            self.add(group, now)

    @property
    def entries(self) -> Iterator[Waiting]:
        """All of them, as plans see them."""
        return (one for _, one in self._groups.values())

    @property
    def head(self) -> Group | None:
        """Who of this router goes first."""
        return next((head for one in SloClass if (head := self.head_of(one)) is not None), None)

    def head_of(self, slo_class: SloClass) -> Group | None:
        """Who of one class goes first."""
        line = self._lines[slo_class]
        while line:
            due_at, key = line[0]
            found = self._groups.get(key)
            if found is not None and found[1].due_at == due_at:
                return found[0]
            heapq.heappop(line)
        return None

    @property
    def at_risk(self) -> Collection[Group]:
        """Those that may be let go."""
        return self._at_risk.values()

    @property
    def tightest_pace_ms(self) -> int | None:
        """The least time between tokens that any of them asks for."""
        return self._paces_ms[0] if self._paces_ms else None


def _stake_of(group: Group) -> Stake:
    """What letting it go would mean. What was started is not let go."""
    session = group.session
    decision = session.decision
    if decision is None or session.slo.ttft_ms is None or group.later_s > 0 or session.is_started:
        return Stake.NONE
    return Stake.ACCEPTED if decision.verdict is Verdict.ACCEPTED else Stake.AT_RISK
