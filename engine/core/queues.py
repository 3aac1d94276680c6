"""The groups that do not run, by what they wait for, and in which order their prompts are computed."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.batch import Batch
from engine.core.sequence import Phase, SequenceGroup
from engine.core.waiting import WaitingQueue
from scheduling.step import PrefillWork

Queue = dict[int, SequenceGroup]
"""By key, as an ordered set: first in, first served, and a group can leave from anywhere."""


class Queues:
    """Counts what waits, and promises rows of the batch to whoever is being prefilled."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.waiting = WaitingQueue()
        self.receiving: Queue = {}
        self.arrived: Queue = {}
        self.preempted: Queue = {}
        """By arrival."""
        self.prefilling: Queue = {}
        self._num_promised_rows = 0

    @property
    def num_waiting_choices(self) -> int:
        queues = (self.receiving, self.arrived, self.preempted, self.prefilling)
        return self.waiting.num_rows + sum(group.num_rows for queue in queues for group in queue.values())

    @property
    def num_preempted_choices(self) -> int:
        return sum(group.num_rows for group in self.preempted.values())

    @property
    def num_pending_tokens(self) -> int:
        queues = (self.arrived, self.preempted, self.prefilling)
        groups = (group for queue in queues for group in queue.values())
        return self.waiting.num_tokens + sum(
            group.num_remaining_tokens for group in groups if group.phase is not Phase.SWAPPED
        )

    def has_rows(self, group: SequenceGroup) -> bool:
        """Whether the batch has a row for each of its choices, beside those that are promised."""
        return self._batch.num_rows + self._num_promised_rows + group.num_rows <= self._batch.max_rows

    def begin_prefill(self, group: SequenceGroup) -> None:
        """It has blocks, and its rows are promised."""
        group.phase = Phase.PREFILLING
        self.prefilling[group.key] = group
        self._num_promised_rows += group.num_rows

    def leave_prefill(self, group: SequenceGroup) -> None:
        """It takes the rows that were promised to it now, or gives them up."""
        del self.prefilling[group.key]
        self._num_promised_rows -= group.num_rows

    def add_preempted(self, groups: Iterable[SequenceGroup]) -> None:
        """Whoever came first comes back first."""
        waiting = [*self.preempted.values(), *groups]
        self.preempted = {group.key: group for group in sorted(waiting, key=_by_arrival)}

    def remove(self, group: SequenceGroup) -> None:
        """From wherever it is; nothing happens if it waits nowhere."""
        if group.phase is Phase.PREFILLING:
            self.leave_prefill(group)
        self.waiting.remove(group)
        for queue in (self.receiving, self.arrived, self.preempted):
            queue.pop(group.key, None)

    def prefill_work(self, now_s: float) -> list[PrefillWork]:
        """What is to be computed, by arrival."""
        return [
            PrefillWork(
                handle=group.key,
                num_remaining_tokens=group.num_remaining_tokens,
                num_computed_tokens=group.num_computed_tokens,
                num_seqs=group.num_rows,
                waited_s=max(0.0, now_s - group.arrived_s),
            )
            for group in sorted(self.prefilling.values(), key=_by_arrival)
            if group.num_remaining_tokens
        ]

    def check_integrity(self) -> None:
        """Assert that rows are promised to those that are being prefilled, and to nobody else."""
        assert self._num_promised_rows == sum(group.num_rows for group in self.prefilling.values())


def _by_arrival(group: SequenceGroup) -> tuple[int, int]:
    return group.arrival, group.key
