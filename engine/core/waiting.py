"""Groups that have no blocks yet, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable

from engine.core.sequence import SequenceGroup


class WaitingQueue:
    """First in, first served; all operations cost O(1), however many wait."""

    def __init__(self) -> None:
        # Dicts as ordered sets, by key: a group can leave from anywhere.
        self._all: dict[int, SequenceGroup] = {}
        self._receives: dict[int, SequenceGroup] = {}
        self.num_rows = 0
        """Rows they will take."""
        self.num_tokens = 0
        """Tokens to be computed here."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, group: SequenceGroup) -> None:
        self._all[group.key] = group
        self.num_rows += group.num_rows
        if group.receives:
            self._receives[group.key] = group
        else:
            self.num_tokens += group.num_context_tokens

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group, if it waits here."""
        if self._all.pop(group.key, None) is None:
            return
        self.num_rows -= group.num_rows
        if self._receives.pop(group.key, None) is None:
            self.num_tokens -= group.num_context_tokens

    def next(self, has_rows: Callable[[SequenceGroup], bool]) -> SequenceGroup | None:
        """Return the first group that the batch has rows for, or that only needs blocks to receive into."""
        head = next(iter(self._all.values()), None)
        if head is None or head.receives or has_rows(head):
            return head
        return next(iter(self._receives.values()), None)
