"""What is ahead of newcomers in the queue when they are judged.

The store tells a newcomer what is ahead when it gives it a place. Between that and the judgement on it, some
of this router's requests ahead are refused, some are bound to a worker, where their work counts as well, and
others come. So each newcomer gets what it was told, changed by what this router's own queue has gained or
lost since.

The store answers in order. Of a newcomer that it has not answered yet, what is taken out of the queue from
now on is gone; what a worker has been granted meanwhile was not counted.
"""

from __future__ import annotations

from collections import deque

from router.core.model.session import Group
from scheduling.admission.line import Place, WaitingLine
from scheduling.prediction import QueueAhead


class AheadOfNewcomers:
    """The order of this router's groups that the store has given a place, and of those just taken out."""

    def __init__(self) -> None:
        self._placed = WaitingLine()
        self._place_of: dict[str, Place] = {}
        self._gone = WaitingLine()
        """Taken out of the queue after some newcomer has asked that is not answered yet."""
        self._gone_after: deque[tuple[int, Place]] = deque()
        """How many newcomers had asked by then, oldest first."""
        self._num_asked = 0
        self._num_answered = 0
        self._num_gone = 0

    def ask(self, newcomer: Group) -> None:
        """Note that a newcomer asks for a place."""
        self._num_asked += 1
        newcomer.number = self._num_asked

    def told(self, newcomer: Group, ahead: QueueAhead) -> QueueAhead:
        """Note that a newcomer has got a place, with so much ahead; return what of it is there now."""
        self._num_answered = max(self._num_answered, newcomer.number)
        while self._gone_after and self._gone_after[0][0] < self._num_answered:
            self._gone.remove(self._gone_after.popleft()[1])
        requests, tokens = self._gone.ahead_of(newcomer.place)
        newcomer.own_ahead = self._own_ahead_of(newcomer)
        self.place(newcomer)
        return ahead.changed(-tokens, -requests)

    def now(self, newcomer: Group, then: QueueAhead) -> QueueAhead:
        """Return what is ahead of a newcomer that had so much ahead when it got its place."""
        own = self._own_ahead_of(newcomer)
        return then.changed(
            own.tokens - newcomer.own_ahead.tokens, own.requests - newcomer.own_ahead.requests
        )

    def place(self, group: Group) -> None:
        """Put a group where the store has it, unless it is there."""
        if group.key not in self._place_of:
            self._place_of[group.key] = group.place
            self._placed.add(group.place, group.work_tokens)

    def leave(self, group: Group, *, is_bound: bool) -> None:
        """Take out a group that has no place any more: it is granted a worker (`is_bound`), or it left."""
        place = self._place_of.pop(group.key, None)
        if place is None:
            return
        self._placed.remove(place)
        if not is_bound and self._num_answered < self._num_asked:
            self._num_gone += 1
            gone = place[0], f"{place[1]} {self._num_gone}"  # it may be gone twice
            self._gone.add(gone, group.work_tokens)
            self._gone_after.append((self._num_asked, gone))

    def _own_ahead_of(self, group: Group) -> QueueAhead:
        requests, tokens = self._placed.ahead_of(group.place)
        return QueueAhead(tokens, requests)
