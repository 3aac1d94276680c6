"""The groups that wait for blocks, and those whose prompts are computed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from engine.core.sequence import SequenceGroup
from scheduling.step import PrefillWork

Queue = dict[int, SequenceGroup]
"""By key, as an ordered set: first in, first served, and a group can leave from anywhere."""


class WaitingQueue:
    """Groups that have no blocks yet, first in, first served; all operations cost O(1), however many wait."""

    def __init__(self) -> None:
        self._all: Queue = {}
        self._receives: Queue = {}
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


class PrefillQueue:
    """Groups whose prompts are computed, by arrival; rows of the batch are promised to them."""

    def __init__(self) -> None:
        self._groups: Queue = {}
        self._order: list[SequenceGroup] = []
        """The same groups by arrival."""
        self.num_rows = 0
        """Rows that are promised."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yield the groups in the order in which they got blocks."""
        return iter(self._groups.values())

    def __getitem__(self, key: int) -> SequenceGroup:
        return self._groups[key]

    def __contains__(self, key: object) -> bool:
        return key in self._groups

    def add(self, group: SequenceGroup) -> None:
        """Promise rows to a group that has blocks."""
        self._groups[group.key] = group
        insort(self._order, group, key=by_arrival)
        self.num_rows += group.num_rows

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group that takes the rows promised to it now, or gives them up."""
        del self._groups[group.key]
        self._order.remove(group)
        self.num_rows -= group.num_rows

    def work(self, now_s: float, *, chunks_follow: bool) -> Sequence[PrefillWork]:
        """Return what is to be computed, by arrival; unless `chunks_follow`, without prompts in flight."""
        groups = [group for group in self._order if group.num_remaining_tokens]
        if not chunks_follow:
            groups = [group for group in groups if not group.pending_chunks]
        return _Work(groups, now_s)

    def check_integrity(self) -> None:
        """Assert that the rows of these groups are promised, and no others."""
        assert self.num_rows == sum(group.num_rows for group in self)
        assert self._order == sorted(self, key=by_arrival)


class _Work(Sequence[PrefillWork]):
    """The work of some groups as of now, made when it is asked for: most step rules look at the first few."""

    __slots__ = ("_groups", "_now_s")

    def __init__(self, groups: list[SequenceGroup], now_s: float) -> None:
        self._groups = groups
        self._now_s = now_s

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> PrefillWork: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PrefillWork]: ...
    def __getitem__(self, index: int | slice) -> PrefillWork | Sequence[PrefillWork]:
        if isinstance(index, slice):
            return [self._work(group) for group in self._groups[index]]
        return self._work(self._groups[index])

    def __iter__(self) -> Iterator[PrefillWork]:
        return map(self._work, self._groups)

    def _work(self, group: SequenceGroup) -> PrefillWork:
        return PrefillWork(
            key=group.key,
            num_remaining_tokens=group.num_remaining_tokens,
            num_computed_tokens=group.num_computed_tokens,
            num_seqs=group.num_rows,
            waited_s=max(0.0, self._now_s - group.arrived_s),
        )


def by_arrival(group: SequenceGroup) -> tuple[int, int]:
    """Return a key that sorts groups by who came first."""
    return group.arrival, group.key
