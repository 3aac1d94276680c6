"""Whether a simulated worker's blocks are enough for whom it would let in, as engines ask it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from scheduling.memory.reservation import LengthQuantiles, blocks_needed, peak_blocks, spread
from sim.workers.batch import Batch
from sim.workers.pool import Name, Pool
from sim.workers.sequence import Goal, Sequence


class Memory:
    """The pool of one worker, with what is expected of its sequences."""

    def __init__(self, num_blocks: int, block_size: int, batch: Batch, *, reserves_maximum: bool) -> None:
        self.pool = Pool(num_blocks, block_size)
        self.holders: dict[tuple[int, int], Sequence] = {}
        self._batch = batch
        self._size = block_size
        self._reserves_maximum = reserves_maximum
        self._lengths = LengthQuantiles()
        self._most_to_come = 0
        self._to_come: dict[tuple[int, int], int] = {}

    @property
    def num_short(self) -> int:
        """Blocks that running sequences need beyond those there are."""
        return max(0, -self.pool.num_available)

    def observe(self, sequence: Sequence) -> None:
        """An output has ended; a length that was demanded says nothing of others."""
        if not sequence.spec.stop.ignore_eos:
            self._lengths.observe(sequence.generated)

    def take(self, sequence: Sequence) -> bool:
        """Give a sequence the blocks that it starts with, if there are enough until all end."""
        names, sizes = self._pieces(sequence)
        num_own = self._blocks_to_start(sequence) - sum(sizes)
        if not self.pool.can_promise(num_own + sum(sizes), names, sizes):
            return False
        if not self._fits(sequence, num_own + sum(sizes)):
            return False
        held = self.pool.held(names)
        cached = sum(sizes[:held]) * self._size
        self.pool.pin(names, sizes)
        self.pool.promise(num_own)
        sequence.block_table, sequence.num_blocks = names, num_own
        sequence.num_computed = min(cached, sequence.context_tokens - 1)
        sequence.num_cached = sequence.num_computed
        self._hold(sequence)
        return True

    def take_back(self, sequence: Sequence) -> bool:
        """Blocks for a sequence that comes back from host memory."""
        num_blocks = sequence.copied_blocks
        if num_blocks > self.pool.num_available or not self._fits(sequence, num_blocks):
            return False
        self.pool.promise(num_blocks)
        sequence.num_blocks = num_blocks
        self._hold(sequence)
        return True

    def cover_newest(self, sequence: Sequence) -> None:
        """Its newest token may begin a block, before it joins the batch."""
        needed = -(-sequence.context_tokens // self._size) - self._num_shared(sequence)
        if needed > sequence.num_blocks:
            self.pool.promise(needed - sequence.num_blocks)
            sequence.num_blocks = needed

    def grow(self, num_blocks: int) -> None:
        """The running sequences have begun that many blocks."""
        if not self._reserves_maximum:
            self.pool.promise(num_blocks)

    def steps_with_room(self, count: int) -> int:
        """After how many of `count` decode steps blocks run short, or all of them; at least 1."""
        most = (count // self._size + 1) * len(self._batch)
        left = self.pool.num_available
        if self._reserves_maximum or most <= left or self._batch.growth(count) <= left:
            return count
        low, high = 1, count
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._batch.growth(middle) > self.pool.num_available else (middle + 1, high)
            )
        return low

    def give(self, sequence: Sequence) -> int:
        """Take all blocks of a sequence back, which has left the batch; answers how many were its own."""
        num_blocks = self.blocks_of(sequence)
        is_whole = sequence.num_computed >= sequence.prompt_tokens
        num_tokens = sequence.context_tokens if is_whole else sequence.num_computed
        num_filled = min(num_blocks, max(0, num_tokens // self._size - self._num_shared(sequence)))
        self.pool.release(num_blocks, num_filled, sequence.block_table)
        sequence.block_table, sequence.num_blocks = (), 0
        key = (sequence.router, sequence.handle)
        del self.holders[key]
        self._most_to_come -= self._to_come.pop(key)
        return num_blocks

    def blocks_of(self, sequence: Sequence) -> int:
        """Blocks of its own that it holds or was promised."""
        if self._reserves_maximum or sequence.goal is Goal.HOLD:
            return sequence.num_blocks
        context = sequence.context_tokens
        if sequence.row >= 0:
            context = sequence.prompt_tokens + self._batch.generated_by(sequence)
        return max(sequence.num_blocks, -(-context // self._size) - self._num_shared(sequence))

    def _hold(self, sequence: Sequence) -> None:
        key = (sequence.router, sequence.handle)
        to_come = 0
        if sequence.goal is not Goal.HOLD:
            to_come = max(1, sequence.spec.stop.max_tokens - sequence.generated)
        self.holders[key] = sequence
        self._to_come[key] = to_come
        self._most_to_come += to_come

    def _blocks_to_start(self, sequence: Sequence) -> int:
        if self._reserves_maximum and sequence.goal is not Goal.HOLD:
            return blocks_needed(sequence.prompt_tokens, sequence.spec.stop.max_tokens, 1, self._size)
        return -(-sequence.context_tokens // self._size)

    def _num_shared(self, sequence: Sequence) -> int:
        return sum(self._pieces(sequence)[1]) if sequence.block_table else 0

    def _pieces(self, sequence: Sequence) -> tuple[tuple[Name, ...], tuple[int, ...]]:
        names = sequence.shared_names
        if not names:
            return (), ()
        tokens = sequence.shared_block_tokens
        ends = [place * tokens // self._size for place in range(len(names) + 1)]
        return names, tuple(end - begin for begin, end in itertools.pairwise(ends))

    def _fits(self, candidate: Sequence, num_blocks: int) -> bool:
        """As an engine's forecast: the peak of all that will be held stays within the pool."""
        if candidate.goal is Goal.HOLD:
            return True
        pool = self.pool
        held = pool.num_blocks - pool.num_available + num_blocks
        to_come = self._most_to_come + candidate.spec.stop.max_tokens
        if held + 2 * to_come / self._size + 1 <= pool.num_blocks:
            return True  # a peak is never higher than that
        growing = [one for one in self.holders.values() if one.goal is not Goal.HOLD]
        if not growing:
            return True
        expected = list(self._expected(growing))
        expected.append((float(num_blocks), self._remaining(candidate, candidate.generated)))
        num_fixed = sum(one.num_blocks for one in self.holders.values() if one.goal is Goal.HOLD)
        num_shared = sum(blocks for blocks, _ in expected) + num_fixed - held
        return peak_blocks(expected, self._size) + num_fixed - num_shared <= pool.num_blocks

    def _expected(self, growing: Iterable[Sequence]) -> Iterable[tuple[float, int]]:
        for one in growing:
            generated = self._batch.generated_by(one) if one.row >= 0 else one.generated
            yield float(self.blocks_of(one) + self._num_shared(one)), self._remaining(one, generated)

    def _remaining(self, sequence: Sequence, generated: int) -> int:
        stop = sequence.spec.stop
        if stop.ignore_eos:
            return max(1, stop.max_tokens - generated)
        return self._lengths.remaining(generated, stop.max_tokens, spread(sequence.order))
