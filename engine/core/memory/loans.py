"""Blocks of the prefix cache that other workers copy: each loan holds its blocks until it is released.

A loan holds what is cached from its first block on, and goes on with what other tiers have, which is read
into new blocks first. All loans together hold no more than `MOST_SHARE` of the pool, since blocks that are
held have no room for sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.commands import Lend
from engine.core.memory.block_manager import BlockShortage
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_reads import KVTiers
from engine.core.report import Filled, Reading

MOST_SHARE = 0.25
"""The part of the pool that may be on loan."""


@dataclass(slots=True)
class _Loan:
    hashes: Sequence[bytes]
    blocks: list[int] = field(default_factory=list)
    num_filled: int = 0
    is_reading: bool = False
    is_released: bool = False


class Loans:
    """The loans of one worker, by their handles, which no sequence has."""

    def __init__(self, pool: BlockPool, tiers: KVTiers | None) -> None:
        self._pool = pool
        self._tiers = tiers
        self._most = int(MOST_SHARE * pool.num_blocks)
        self._num_lent = 0
        self._loans: dict[int, _Loan] = {}

    @property
    def tables(self) -> list[list[int]]:
        """The blocks of each loan."""
        return [loan.blocks for loan in self._loans.values()]

    def __contains__(self, handle: int) -> bool:
        return handle in self._loans

    def begin(self, lend: Lend) -> Filled | Reading | None:
        """Hold the blocks of a loan; return them, or a read that has to end before. None: there are none."""
        loan = self._hold(lend)
        if not loan.blocks:
            return None
        self._loans[lend.handle] = loan
        self._num_lent += len(loan.blocks)
        if not loan.is_reading:
            return self._filled(lend.handle, loan)
        blocks, end = loan.blocks[loan.num_filled :], len(loan.blocks)
        return Reading(lend.handle, tuple(blocks), tuple(loan.hashes[loan.num_filled : end]), lend.limit_s)

    def end_read(self, handle: int, num_blocks: int) -> Filled | None:
        """Take in that the read of a loan is over; return its blocks. None: there are none, or it is over."""
        loan = self._loans[handle]
        loan.is_reading = False
        end = loan.num_filled + num_blocks
        for place in range(loan.num_filled, end):
            loan.blocks[place] = self._pool.register(loan.blocks[place], loan.hashes[place])
        loan.num_filled = end
        unread, loan.blocks = loan.blocks[end:], loan.blocks[:end]
        self._pool.free(unread)
        self._num_lent -= len(unread)
        if loan.is_released or not loan.blocks:
            self._end(handle)
            return None
        return self._filled(handle, loan)

    def release(self, handle: int) -> bool:
        """Give the blocks of a loan back; return False if a read still writes to them: then later."""
        loan = self._loans[handle]
        loan.is_released = True
        if loan.is_reading:
            return False
        self._end(handle)
        return True

    def _end(self, handle: int) -> None:
        loan = self._loans.pop(handle)
        self._pool.free(loan.blocks)
        self._num_lent -= len(loan.blocks)

    def _hold(self, lend: Lend) -> _Loan:
        """Hold what is cached, and blocks to read the rest into, as far as the pool has room."""
        loan = _Loan(lend.hashes[: self._most - self._num_lent])
        try:
            loan.blocks = self._pool.reserve(len(loan.hashes), loan.hashes)
        except BlockShortage:
            # There is room for so many even if none of them is in use already.
            loan.hashes = loan.hashes[: self._pool.num_available_blocks]
            loan.blocks = self._pool.reserve(len(loan.hashes), loan.hashes)
        loan.num_filled = len(loan.blocks)
        num_to_read = self._num_to_read(loan.hashes[loan.num_filled :], lend.limit_s)
        loan.is_reading = num_to_read > 0
        self._pool.unreserve(len(loan.hashes) - loan.num_filled - num_to_read)
        loan.blocks += self._pool.allocate(num_to_read)
        return loan

    def _num_to_read(self, hashes: Sequence[bytes], limit_s: float) -> int:
        """Return how many of the blocks behind the cached ones to read from other tiers."""
        if self._tiers is None:
            return 0
        hits = self._tiers.readable(hashes)
        return max((hit.num_blocks for hit in hits if hit.read_s < limit_s), default=0)

    def _filled(self, handle: int, loan: _Loan) -> Filled:
        hashes = tuple(loan.hashes[: len(loan.blocks)])
        return Filled(handle, 0, tuple(loan.blocks), hashes, complete=True)
