"""Which groups a worker has, and in which phase each one is."""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from engine.core.batch import Batch
from engine.core.sequence import Phase, SequenceGroup
from scheduling.step import PrefillWork

Queue = dict[int, SequenceGroup]
"""By key, as an ordered set: first in, first served, and a group can leave from anywhere."""
WITHOUT_BLOCKS = (Phase.WAITING, Phase.PREEMPTED, Phase.SWAPPED)


class Roster:
    """Every group that has not ended, by its handle, and by its phase in the queue that belongs to the phase.

    Nothing else sets the phase of a group, or puts one into a queue.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.keys = itertools.count(1)
        """The keys of new groups."""
        self._pieces: dict[int, list[SequenceGroup]] = {}
        """By handle. All choices of a handle are one group, unless a preemption broke it into pieces."""
        self.lacking_grammar: Queue = {}
        """Until their grammars are compiled."""
        self.lacking_adapter: Queue = {}
        """Until their LoRA adapters are loaded."""
        self.waiting = WaitingQueue()
        """Until there are blocks for them."""
        self.arrived: Queue = {}
        self.preempted: Queue = {}
        """By arrival."""
        self.prefilling = PrefillQueue()
        self._receiving: Queue = {}
        self._reading: Queue = {}
        self._queue_of = {
            Phase.RECEIVING: self._receiving,
            Phase.READING: self._reading,
            Phase.FOLLOWING: self._reading,
            Phase.ARRIVED: self.arrived,
        }

    # By handle

    def __contains__(self, handle: object) -> bool:
        return handle in self._pieces

    def handles(self) -> list[int]:
        """Return the handles of all groups."""
        return list(self._pieces)

    def pieces(self, handle: int) -> list[SequenceGroup]:
        """Return the groups of a handle; none if it has ended."""
        return list(self._pieces.get(handle, ()))

    def undivided(self, handle: int) -> SequenceGroup | None:
        """Return the one group of a handle that has not run yet."""
        pieces = self._pieces.get(handle)
        return None if pieces is None else pieces[0]

    def all(self) -> list[SequenceGroup]:
        """Return every group."""
        return [group for pieces in self._pieces.values() for group in pieces]

    def holders(self) -> Iterator[SequenceGroup]:
        """Yield the groups that have blocks."""
        for pieces in self._pieces.values():
            for group in pieces:
                if group.phase not in WITHOUT_BLOCKS:
                    yield group

    def is_preempted(self, handle: int) -> bool:
        """Return True if any piece of the handle is preempted."""
        return any(piece.key in self.preempted for piece in self._pieces.get(handle, ()))

    # Changes

    def add(self, group: SequenceGroup) -> None:
        """Enter the one group of a new handle, which waits for nothing yet."""
        self._pieces[group.handle] = [group]

    def wait_for_grammar(self, group: SequenceGroup) -> None:
        """Let a new group wait until its grammar is compiled."""
        self.lacking_grammar[group.key] = group

    def wait_for_adapter(self, group: SequenceGroup) -> None:
        """Let a group that lacks no grammar wait until its adapter is loaded."""
        self.lacking_grammar.pop(group.key, None)
        self.lacking_adapter[group.key] = group

    def wait_for_blocks(self, group: SequenceGroup) -> None:
        """Let a group that lacks neither grammar nor adapter wait until it gets blocks."""
        self._leave(group)
        self.waiting.add(group)

    def put(self, group: SequenceGroup, phase: Phase) -> None:
        """Move a group to another phase, and to its queue, if it has one; `suspend` preempts.

        While it is being prefilled, rows of the batch are promised to it.
        """
        self._leave(group)
        group.phase = phase
        if phase is Phase.PREFILLING:
            self.prefilling.add(group)
        elif (queue := self._queue_of.get(phase)) is not None:
            queue[group.key] = group

    def suspend(self, group: SequenceGroup, pieces: list[SequenceGroup], phase: Phase) -> None:
        """Replace a group by the pieces that a preemption broke it into, which may be the group itself.

        They wait such that the one that came first comes back first.
        """
        self._leave(group)
        siblings = self._pieces[group.handle]
        siblings.remove(group)
        siblings.extend(pieces)
        for piece in pieces:
            piece.phase = phase
        waiting = [*self.preempted.values(), *pieces]
        self.preempted = {piece.key: piece for piece in sorted(waiting, key=by_arrival)}

    def remove(self, group: SequenceGroup) -> bool:
        """Remove a group that ends, from whatever phase; return True if its handle is free now."""
        self._leave(group)
        group.phase = Phase.ENDED
        pieces = self._pieces[group.handle]
        pieces.remove(group)
        if pieces:
            return False
        del self._pieces[group.handle]
        return True

    def _leave(self, group: SequenceGroup) -> None:
        """Take a group out of the queue of its phase."""
        match group.phase:
            case Phase.WAITING:
                self.lacking_grammar.pop(group.key, None)
                self.lacking_adapter.pop(group.key, None)
                self.waiting.remove(group)
            case Phase.PREFILLING:
                self.prefilling.remove(group)
            case Phase.PREEMPTED | Phase.SWAPPED:
                del self.preempted[group.key]
            case phase if phase in self._queue_of:
                del self._queue_of[phase][group.key]

    # Who is next

    @property
    def has_any(self) -> bool:
        """True if a group may be let in, or is being prefilled."""
        return bool(len(self.prefilling) or self.arrived or self.preempted or len(self.waiting))

    def has_rows(self, group: SequenceGroup) -> bool:
        """Return True if the batch has a row for each choice, beside those that are promised."""
        return self._batch.num_rows + self.prefilling.num_rows + group.num_rows <= self._batch.max_rows

    def next(self) -> SequenceGroup | None:
        """Return the group that gets blocks next; None if nobody waits for them, or the batch has no rows.

        Preempted groups come before new ones.
        """
        head = next(iter(self.preempted.values()), None)
        if head is None:
            return self.waiting.next(self.has_rows)
        return head if self.has_rows(head) else None

    # How much waits

    @property
    def num_waiting_choices(self) -> int:
        without_tokens = (self.lacking_grammar, self._receiving)
        num_rows = self.waiting.num_rows + self.prefilling.num_rows
        with_tokens = (self.lacking_adapter, self._reading, self.arrived, self.preempted)
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
        for queue in (self.lacking_adapter, self._reading, self.arrived, self.preempted):
            for group in queue.values():
                if group.phase is not Phase.SWAPPED and not group.receives:
                    num_tokens += group.num_remaining_tokens
        for group in self.prefilling:
            if not group.receives:
                num_tokens += group.num_remaining_tokens
        return num_tokens

    def check_integrity(self) -> None:
        """Assert that each group that waits is in the queue of its phase, and in no other."""
        self.prefilling.check_integrity()
        for group in self.all():
            queue = self._queue_of.get(group.phase, {})
            assert group.phase not in self._queue_of or group.key in queue, f"{group.phase} without its queue"
            assert (group.phase is Phase.PREFILLING) == (group.key in self.prefilling)
            is_preempted = group.phase in (Phase.PREEMPTED, Phase.SWAPPED)
            assert is_preempted == (group.key in self.preempted)
            assert group.phase is not Phase.ENDED, "a group that has ended has its handle still"
        num_queued = sum(map(len, (self._receiving, self._reading, self.arrived)))
        assert num_queued == sum(group.phase in self._queue_of for group in self.all())


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
