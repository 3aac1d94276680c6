"""Sequences of one simulated worker that do not run: who is next, who is let in, who gives blocks up.

The same order as an engine's: running choices get their blocks first; whoever was preempted comes back before
anybody new; who came first goes first, and a head that lacks memory holds up everybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import overload

from scheduling.cost.cost_model import CostModel
from scheduling.memory.preemption import Means, SwapSpeed, VictimView, choose
from scheduling.step import PrefillWork
from sim.workers.batch import Batch
from sim.workers.memory import Memory
from sim.workers.sequence import Goal, Phase, Sequence

Key = tuple[int, int]
"""Router and handle."""
MAX_TURNS_UNASKED = 16
"""A head that memory had no room for is looked at again when blocks come back, or after so many turns."""


_FOREVER = 1 << 60


class Queues:
    """Everybody by phase; answers what a turn of the step loop has to do next."""

    def __init__(self, batch: Batch, memory: Memory, max_rows: int, swap: SwapSpeed) -> None:
        self._batch = batch
        self._memory = memory
        self._max_rows = max_rows
        self._swap = swap
        self.all: dict[Key, Sequence] = {}
        # Ordered dicts: the first of a plain one is found ever more slowly as others before it are deleted.
        self.waiting: OrderedDict[Key, Sequence] = OrderedDict()
        self.arrived: OrderedDict[Key, Sequence] = OrderedDict()
        self.preempted: OrderedDict[Key, Sequence] = OrderedDict()
        self.prefilling: list[Sequence] = []
        self.num_receiving = 0
        self.pending_tokens = 0
        self._waited_copies_s = 0.0
        self.recomputed_tokens = 0
        self._blocked_head: Key | None = None
        self._num_turns_unasked = 0
        self._is_in_vain = False
        self._num_receivers = 0

    @property
    def num_waiting(self) -> int:
        return (
            len(self.waiting)
            + len(self.arrived)
            + len(self.preempted)
            + len(self.prefilling)
            + self.num_receiving
        )

    def enter(self, sequence: Sequence) -> None:
        """A command came."""
        key = (sequence.router, sequence.handle)
        self.all[key] = self.waiting[key] = sequence
        if sequence.goal is Goal.RECEIVE:
            self._num_receivers += 1
        else:
            self.pending_tokens += sequence.num_remaining

    def turns_in_vain(self) -> int:
        """For how many turns it is known that nobody will be let in, if nothing comes and nobody ends."""
        return MAX_TURNS_UNASKED - self._num_turns_unasked if self._is_in_vain else _FOREVER

    def pass_turns(self, count: int) -> None:
        """Turns have passed in which nobody was let in."""
        if self._is_in_vain:
            self._num_turns_unasked += count

    def let_in(self) -> tuple[list[Sequence], list[Sequence]]:
        """Let sequences in while memory and the batch have room.

        Answers those that begin to decode or to receive at once, and those that came back.
        """
        started: list[Sequence] = []
        resumed: list[Sequence] = []
        self._is_in_vain = False
        if not (self.preempted or self.arrived or self.waiting):
            return started, resumed
        has_room = self._resume(started, resumed)
        while self.arrived and self._has_row(len(started)):
            started.append(self.arrived.popitem(last=False)[1])
        if has_room:
            self._admit(started)
        return started, resumed

    def _resume(self, started: list[Sequence], resumed: list[Sequence]) -> bool:
        for key, sequence in list(self.preempted.items()):
            if not (self._has_row(len(started)) and self._take_memory(key, sequence)):
                return False
            del self.preempted[key]
            resumed.append(sequence)
            if sequence.phase is Phase.SWAPPED:
                self._waited_copies_s += self._copy_s(sequence.copied_blocks)
                sequence.copied_blocks = 0
                started.append(sequence)
            else:
                self.pending_tokens -= sequence.num_computed
                self._begin_prefill(sequence)
        return True

    def _admit(self, started: list[Sequence]) -> None:
        while self.waiting:
            key, sequence = next(iter(self.waiting.items()))
            if sequence.goal is not Goal.RECEIVE and not self._has_row(len(started)):
                self._admit_receivers(started)
                return
            if not self._take_memory(key, sequence):
                return
            self._start(key, sequence, started)

    def _admit_receivers(self, started: list[Sequence]) -> None:
        """Rows lack, which a receiving sequence needs only later."""
        if not self._num_receivers:
            return
        for key, sequence in list(self.waiting.items()):
            if sequence.goal is Goal.RECEIVE:
                if not self._take_memory(key, sequence):
                    return
                self._start(key, sequence, started)

    def _start(self, key: Key, sequence: Sequence, started: list[Sequence]) -> None:
        del self.waiting[key]
        if sequence.goal is Goal.RECEIVE:
            self._num_receivers -= 1
            self.num_receiving += 1
            sequence.phase = Phase.RECEIVING
            started.append(sequence)
        else:
            self.pending_tokens -= sequence.num_computed
            self._begin_prefill(sequence)

    def _has_row(self, num_started: int) -> bool:
        return len(self._batch) + len(self.prefilling) + num_started < self._max_rows

    def _take_memory(self, key: Key, sequence: Sequence) -> bool:
        if self._blocked_head == key and len(self._batch):
            self._num_turns_unasked += 1
            if self._num_turns_unasked < MAX_TURNS_UNASKED:
                self._is_in_vain = True
                return False
        self._num_turns_unasked = 0
        if sequence.phase is Phase.SWAPPED:
            has_room = self._memory.take_back(sequence)
        else:
            has_room = self._memory.take(sequence)
        self._blocked_head = None if has_room else key
        self._is_in_vain = not has_room
        return has_room

    def _begin_prefill(self, sequence: Sequence) -> None:
        sequence.phase = Phase.PREFILLING
        place = len(self.prefilling)
        while place and self.prefilling[place - 1].order > sequence.order:
            place -= 1
        self.prefilling.insert(place, sequence)

    def work(self, now: float) -> Seq[PrefillWork]:
        """What is to be computed, by arrival."""
        return _Work(self.prefilling, now)

    def computed(self, sequence: Sequence, num_tokens: int) -> bool:
        """A chunk is done; whether it was the last."""
        sequence.num_computed += num_tokens
        self.pending_tokens -= num_tokens
        if sequence.num_remaining:
            return False
        self.prefilling.remove(sequence)
        return True

    def take_copy_s(self) -> float:
        """Seconds of copies to and from host memory that the next step waits for; they are told once."""
        copy_s, self._waited_copies_s = self._waited_copies_s, 0.0
        return copy_s

    def make_room(self, cost: CostModel, now: float) -> list[Sequence]:
        """Preempt until the running sequences have the blocks they need; answers who gave theirs up."""
        victims: list[Sequence] = []
        while (num_short := self._memory.num_short) > 0:
            candidates = {
                place: one
                for place, one in enumerate(self._memory.holders.values())
                if one.goal is not Goal.HOLD and one.phase in (Phase.ARRIVED, Phase.PREFILLING, Phase.RUNNING)
            }
            views = [self._view(place, one, now) for place, one in candidates.items()]
            chosen = choose(views, num_short, cost, self._swap)
            assert chosen is not None, "whoever is short of a block is short of it no longer once preempted"
            victim = candidates[chosen.handle]
            self._suspend(victim, chosen.means)
            victims.append(victim)
        return victims

    def _view(self, place: int, one: Sequence, now: float) -> VictimView:
        is_running = one.phase is Phase.RUNNING
        generated = self._batch.generated_by(one) if is_running else one.generated
        num_blocks = self._memory.blocks_of(one)
        return VictimView(
            handle=place,
            num_tokens=one.prompt_tokens + generated if is_running else one.num_computed,
            num_freed_blocks=num_blocks,
            num_swap_blocks=num_blocks,
            arrival=one.order,
            slack_s=self._batch.slack_of(one, now) if is_running else float("inf"),
            can_swap=is_running and not one.block_table,
        )

    def _suspend(self, victim: Sequence, means: Means) -> None:
        key = (victim.router, victim.handle)
        if victim.phase is Phase.RUNNING:
            self._batch.leave(victim)
        elif victim.phase is Phase.PREFILLING:
            self.prefilling.remove(victim)
            self.pending_tokens -= victim.num_remaining
        else:
            del self.arrived[key]
        victim.is_resuming = victim.is_resuming or victim.phase is Phase.RUNNING
        num_blocks = self._memory.give(victim)
        if means is Means.SWAP:
            victim.phase, victim.copied_blocks = Phase.SWAPPED, num_blocks
            self._waited_copies_s += self._copy_s(num_blocks)
        else:
            victim.phase = Phase.PREEMPTED
            self.recomputed_tokens += victim.num_computed
            victim.num_computed = 0
            self.pending_tokens += victim.num_remaining
        self.preempted[key] = victim

    def _copy_s(self, num_blocks: int) -> float:
        return num_blocks * self._swap.block_bytes / self._swap.bytes_per_s

    def forget(self, sequence: Sequence) -> None:
        """It has ended, in whatever phase."""
        key = (sequence.router, sequence.handle)
        del self.all[key]
        phase = sequence.phase
        if phase is Phase.RUNNING and sequence.row >= 0:
            self._batch.leave(sequence)
        elif phase is Phase.PREFILLING:
            self.prefilling.remove(sequence)
        elif phase is Phase.RECEIVING:
            self.num_receiving -= 1
        elif phase is Phase.WAITING and sequence.goal is Goal.RECEIVE:
            self._num_receivers -= 1
        for queue in (self.waiting, self.arrived, self.preempted):
            queue.pop(key, None)
        if phase in (Phase.PREFILLING, Phase.PREEMPTED) or (
            phase is Phase.WAITING and sequence.goal is not Goal.RECEIVE
        ):
            self.pending_tokens -= sequence.num_remaining
        if phase not in (Phase.WAITING, Phase.PREEMPTED, Phase.SWAPPED):
            self._memory.give(sequence)
        sequence.phase = Phase.ENDED
        self._blocked_head = None


class _Work(Seq[PrefillWork]):
    """Made as they are asked for: most rules look at the first few only."""

    __slots__ = ("_now", "_sequences")

    def __init__(self, sequences: list[Sequence], now: float) -> None:
        self._sequences = sequences
        self._now = now

    def __len__(self) -> int:
        return len(self._sequences)

    @overload
    def __getitem__(self, index: int) -> PrefillWork: ...
    @overload
    def __getitem__(self, index: slice) -> Seq[PrefillWork]: ...
    def __getitem__(self, index: int | slice) -> PrefillWork | Seq[PrefillWork]:
        if isinstance(index, slice):
            return [self._work(place) for place in range(*index.indices(len(self)))]
        return self._work(index)

    def __iter__(self) -> Iterator[PrefillWork]:
        return (self._work(place) for place in range(len(self._sequences)))

    def _work(self, place: int) -> PrefillWork:
        one = self._sequences[place]
        return PrefillWork(
            place, one.num_remaining, one.num_computed, 1, max(0.0, self._now - one.arrived_at)
        )
