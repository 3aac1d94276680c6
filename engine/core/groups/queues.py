"""The groups that do not run, by what they wait for, and in which order their prompts are computed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from engine.core.batch import Batch
from engine.core.sequence import Phase, SequenceGroup
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


class Queues:
    """Counts what waits, and promises rows of the batch to groups that are being prefilled."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.lacking_grammar: Queue = {}
        """Until their grammars are compiled."""
        self.lacking_adapter: Queue = {}
        """Until their LoRA adapters are loaded."""
        self.waiting = WaitingQueue()
        self.receiving: Queue = {}
        self.reading: Queue = {}
        self.arrived: Queue = {}
        self.preempted: Queue = {}
        """By arrival."""
        self.prefilling: Queue = {}
        self._prefill_order: list[SequenceGroup] = []
        """The same groups by arrival."""
        self._num_promised_rows = 0

    @property
    def has_any(self) -> bool:
        """True if a group may be let in, or is being prefilled."""
        return bool(self.prefilling or self.arrived or self.preempted or len(self.waiting))

    @property
    def num_waiting_choices(self) -> int:
        without_tokens = (self.lacking_grammar, self.receiving)
        num_rows = self.waiting.num_rows
        with_tokens = (self.lacking_adapter, self.reading, self.arrived, self.preempted, self.prefilling)
        for queue in (*without_tokens, *with_tokens):
            if queue:
                num_rows += sum([group.num_rows for group in queue.values()])
        return num_rows

    @property
    def num_preempted_choices(self) -> int:
        return sum(group.num_rows for group in self.preempted.values())

    @property
    def num_pending_tokens(self) -> int:
        num_tokens = self.waiting.num_tokens
        for queue in (self.lacking_adapter, self.reading, self.arrived, self.preempted, self.prefilling):
            for group in queue.values():
                if group.phase is not Phase.SWAPPED and not group.receives:
                    num_tokens += group.num_remaining_tokens
        return num_tokens

    def has_rows(self, group: SequenceGroup) -> bool:
        """Return True if the batch has a row for each choice, beside those that are promised."""
        return self._batch.num_rows + self._num_promised_rows + group.num_rows <= self._batch.max_rows

    def begin_prefill(self, group: SequenceGroup) -> None:
        """Promise rows to a group that has blocks."""
        group.phase = Phase.PREFILLING
        self.prefilling[group.key] = group
        insort(self._prefill_order, group, key=_by_arrival)
        self._num_promised_rows += group.num_rows

    def leave_prefill(self, group: SequenceGroup) -> None:
        """The group takes the rows that were promised to it now, or gives them up."""
        del self.prefilling[group.key]
        self._prefill_order.remove(group)
        self._num_promised_rows -= group.num_rows

    def add_preempted(self, groups: Iterable[SequenceGroup]) -> None:
        """Queue groups such that the one that came first comes back first."""
        waiting = [*self.preempted.values(), *groups]
        self.preempted = {group.key: group for group in sorted(waiting, key=_by_arrival)}

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group from wherever it waits, if it does."""
        if group.phase is Phase.PREFILLING:
            self.leave_prefill(group)
        self.waiting.remove(group)
        for queue in (self.lacking_grammar, self.lacking_adapter, self.receiving, self.reading):
            queue.pop(group.key, None)
        for queue in (self.arrived, self.preempted):
            queue.pop(group.key, None)

    def prefill_work(self, now_s: float, *, chunks_follow: bool) -> Sequence[PrefillWork]:
        """Return what is to be computed, by arrival; unless `chunks_follow`, without prompts in flight."""
        groups = [group for group in self._prefill_order if group.num_remaining_tokens]
        if not chunks_follow:
            groups = [group for group in groups if not group.pending_chunks]
        return _Work(groups, now_s)

    def check_integrity(self) -> None:
        """Assert that rows are promised to those that are being prefilled, and to no others."""
        groups = self.prefilling.values()
        assert self._num_promised_rows == sum(group.num_rows for group in groups)
        assert self._prefill_order == sorted(groups, key=_by_arrival)


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


def _by_arrival(group: SequenceGroup) -> tuple[int, int]:
    return group.arrival, group.key
