"""What is ahead of newcomers in the queue when they are judged.

The store tells a newcomer what is ahead when it gives it a place. Between that and the judgement on it, some
of this router's requests ahead are refused, some are bound to a worker, where their work counts as well, and
others come. So each newcomer gets what it was told, changed by what this router's own queue has gained or
lost since.

The store executes calls in order. So what a newcomer is told counts those that had asked before it, and none
that a worker was granted until the answer.
"""

from __future__ import annotations

from router.core.model.session import Group
from scheduling.admission.line import WaitingLine
from scheduling.prediction import QueueAhead


class AheadOfNewcomers:
    """This router's groups in the queue, in order, and what was ahead of newcomers when they asked."""

    def __init__(self) -> None:
        self._line = WaitingLine()
        self._asking: dict[str, Group] = {}
        """Newcomers that the store has not answered."""

    def __len__(self) -> int:
        """Return how many groups are kept, those twice that the store has not answered."""
        return len(self._line) + len(self._asking)

    def add(self, group: Group) -> None:
        """Add a group that asks for a place, or has one again."""
        self._line.add(group.place, group.work_tokens)

    def ask(self, newcomer: Group) -> None:
        """Note that a newcomer, which was added, asks for its place."""
        newcomer.own_ahead = self._own_ahead_of(newcomer)
        self._asking[newcomer.key] = newcomer

    def remove(self, group: Group, *, is_bound: bool) -> None:
        """Remove a group that is granted a worker (`is_bound`), or that leaves the queue."""
        self._asking.pop(group.key, None)
        self._line.remove(group.place)
        if is_bound:
            for newcomer in self._asking.values():
                if group.place < newcomer.place:
                    newcomer.own_ahead = newcomer.own_ahead.changed(-group.work_tokens, -1)

    def told(self, newcomer: Group, ahead: QueueAhead) -> QueueAhead:
        """Note that the store has told a newcomer what was ahead; return what is there now."""
        self._asking.pop(newcomer.key, None)
        return self.now(newcomer, ahead)

    def now(self, newcomer: Group, told: QueueAhead) -> QueueAhead:
        """Return what is ahead of a newcomer that was told so much."""
        own, then = self._own_ahead_of(newcomer), newcomer.own_ahead
        return told.changed(own.tokens - then.tokens, own.requests - then.requests)

    def _own_ahead_of(self, group: Group) -> QueueAhead:
        requests, tokens = self._line.ahead_of(group.place)
        return QueueAhead(tokens, requests)
