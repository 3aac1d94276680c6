"""Which groups a worker has, and in which phase each one is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from engine.core.batch import Batch
from engine.core.groups.queues import PrefillQueue, Queue, WaitingQueue, by_arrival
from engine.core.sequence import Phase, SequenceGroup

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
