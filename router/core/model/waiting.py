"""The groups of this router that are in the fleet's queue: kept in order and summed up, never searched.

The store tells a newcomer what is ahead when it gives it a place. Between that and the judgement on it, some
of this router's groups ahead are refused, some are bound to a worker, where their work counts as well, and
others come. So what a newcomer was told is changed by what this router has gained or lost ahead of it since
it asked. The store executes calls in order: what it tells counts those that had asked before, and none that a
worker was granted until the answer.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from router.core.model.session import IN_QUEUE, Group, Phase, Session
from scheduling.admission.admission import Decision, Verdict
from scheduling.admission.backlog import Backlog, Stake, Waiting, WaitingLine
from scheduling.prediction import QueueAhead
from scheduling.request import Slo, SloClass
from scheduling.value import value

LEAST_STALE = 64
"""Entries of a line that may be stale, because their groups left, before the line is made anew."""


@value
class _Place:
    """A group in the queue, as it was when it came in; `number` counts those that came before."""

    group: Group
    entry: Waiting
    number: int


class WaitingGroups:
    """The groups that wait, each once."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self._line = WaitingLine()
        self._newcomers: dict[str, Group] = {}
        """Those on which nothing was decided yet."""
        self._places: dict[str, _Place] = {}
        self._num_came = 0
        self._by_tenant: dict[str, dict[str, Group]] = {}
        """Ordered by when they came in."""
        self._paces_ms: list[int] = []
        self._lines: dict[SloClass, list[tuple[float, str]]] = {slo_class: [] for slo_class in SloClass}
        """Heaps of due times and keys, by class; entries of groups that left are dropped at the head."""
        self._asked: list[tuple[float, str]] = []
        """A heap of the times at which places were asked for; outdated entries are dropped at the head."""
        self._at_risk: dict[SloClass, list[tuple[int, str]]] = {slo_class: [] for slo_class in SloClass}
        """Tokens and keys of groups at risk, ascending."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Group]:
        return (place.group for place in self._places.values())

    def add(self, group: Group, now: float) -> None:
        """Add a group that asks for a place, or has one."""
        self._line.add(group.place, group.work_tokens)
        self._sum_up(group, now)
        self.asked(group)

    def remove(self, group: Group) -> None:
        """Remove a group that waits no longer."""
        self._forget(group)
        self._line.remove(group.place)
        self._newcomers.pop(group.key, None)
        if group.phase is not Phase.SETTLING:
            return
        for newcomer in self._newcomers.values():
            if group.place < newcomer.place and newcomer.session.ahead is None:
                newcomer.own_ahead = newcomer.own_ahead.changed(-group.work_tokens, -1)

    def ahead_of(self, newcomer: Group, told: QueueAhead) -> QueueAhead:
        """Return what is ahead of a newcomer that was told so much when it got its place."""
        own, then = self._own_ahead_of(newcomer), newcomer.own_ahead
        return told.changed(own.tokens - then.tokens, own.requests - then.requests)

    def _own_ahead_of(self, group: Group) -> QueueAhead:
        requests, tokens = self._line.ahead_of(group.place)
        return QueueAhead(tokens, requests)

    def _sum_up(self, group: Group, now: float) -> None:
        assert group.key not in self._places, "a group waits once"
        slo_class, pace_ms = group.session.request.slo.slo_class, group.session.aim.pace_ms
        entry = Waiting(group.key, slo_class, group.due_at, group.work_tokens, _stake_of(group))
        self._num_came += 1
        self._by_tenant.setdefault(group.session.request.tenant, {})[group.key] = group
        self._places[group.key] = _Place(group, entry, self._num_came)
        self.backlog.add(entry, now)
        if pace_ms is not None:
            insort(self._paces_ms, pace_ms)
        self._stand_in_line(entry)
        if entry.stake is Stake.AT_RISK:
            insort(self._at_risk[slo_class], (entry.tokens, entry.key))

    def _forget(self, group: Group) -> None:
        entry = self._places.pop(group.key).entry
        own = self._by_tenant[group.session.request.tenant]
        del own[group.key]
        if not own:
            del self._by_tenant[group.session.request.tenant]
        self.backlog.remove(entry)
        if entry.stake is Stake.AT_RISK:
            line = self._at_risk[entry.slo_class]
            del line[bisect_left(line, (entry.tokens, entry.key))]
        pace_ms = group.session.aim.pace_ms
        if pace_ms is not None:
            del self._paces_ms[bisect_left(self._paces_ms, pace_ms)]

    def decide(self, session: Session, decision: Decision, aim: Slo, now: float) -> None:
        """Set what was decided on a session, on which the order of its waiting groups depends."""
        waiting = [group for group in session.groups if group.phase in IN_QUEUE]
        for group in waiting:
            self._forget(group)
            self._newcomers.pop(group.key, None)
        session.decision, session.aim = decision, aim
        for group in waiting:
            self._sum_up(group, now)

    def _stand_in_line(self, entry: Waiting) -> None:
        line = self._lines[entry.slo_class]
        heapq.heappush(line, (entry.due_at, entry.key))
        stale = len(line) - LEAST_STALE
        if stale > 0 and stale > 2 * self.backlog.requests_of(entry.slo_class):
            # Compared with its own class only: other classes may have many more waiting requests.
            line[:] = [found for found in dict.fromkeys(line) if self._is_current(found)]
            heapq.heapify(line)

    def _is_current(self, entry: tuple[float, str]) -> bool:
        """Return True if an entry of a line still belongs to a waiting group."""
        due_at, key = entry
        place = self._places.get(key)
        return place is not None and place.entry.due_at == due_at

    def asked(self, group: Group) -> None:
        """Note that a group asked for its place at `group.asked_at`."""
        if not group.session.admitted and group.session.ahead is None:
            self._newcomers[group.key] = group
            group.own_ahead = self._own_ahead_of(group)
        heapq.heappush(self._asked, (group.asked_at, group.key))

    def take_unconfirmed(self, now: float, least_s: float, most: int) -> list[Group]:
        """Take the groups that have a place and last asked for it at least this long ago.

        At most `most` are taken, the longest ago first, and returned in the order in which they came. A group
        is taken once for each time it has asked.
        """
        asked, kept = self._asked, []
        due: dict[str, _Place] = {}
        while asked and len(due) < most and now - asked[0][0] >= least_s:
            at, key = heapq.heappop(asked)
            place = self._places.get(key)
            if place is None or place.group.asked_at != at or key in due:
                continue
            if place.group.phase is Phase.WAITING:
                due[key] = place
            else:
                kept.append((at, key))
        for entry in kept:
            heapq.heappush(asked, entry)
        return [place.group for place in sorted(due.values(), key=lambda place: place.number)]

    @property
    def entries(self) -> Iterator[Waiting]:
        """Return all groups as plans see them."""
        return (place.entry for place in self._places.values())

    @property
    def head(self) -> Group | None:
        """Return the group of this router that goes first."""
        return next((head for slo_class in SloClass if (head := self.head_of(slo_class)) is not None), None)

    def head_of(self, slo_class: SloClass) -> Group | None:
        """Return the group of one class that goes first."""
        line = self._lines[slo_class]
        while line:
            if self._is_current(line[0]):
                return self._places[line[0][1]].group
            heapq.heappop(line)
        return None

    @property
    def first_by_tenant(self) -> Iterator[Group]:
        """Return the group of each tenant that came first."""
        return (next(iter(own.values())) for own in self._by_tenant.values())

    @property
    def has_at_risk(self) -> bool:
        """Return True if some group may be put behind."""
        return any(self._at_risk.values())

    def largest_at_risk(self, slo_class: SloClass) -> Group | None:
        """Return the largest group of a class that may be put behind; of equals the one with the last key."""
        line = self._at_risk[slo_class]
        return self._places[line[-1][1]].group if line else None

    @property
    def tightest_pace_ms(self) -> int | None:
        """Return the least time between tokens that any group asks for."""
        return self._paces_ms[0] if self._paces_ms else None


def _stake_of(group: Group) -> Stake:
    """Return what is lost if a group is put behind; never once a worker has had any of its request."""
    session = group.session
    decision = session.decision
    is_started = session.timeline.dispatched_at is not None or session.number > 0
    if decision is None or session.aim.ttft_ms is None or group.delay_s > 0 or is_started:
        return Stake.NONE
    return Stake.ACCEPTED if decision.verdict is Verdict.ACCEPTED else Stake.AT_RISK
