"""Blocks that other workers copy: loans of cached ones, and those of running sequences that move.

A loan has a handle, as a group does, and no group. It holds what is cached from its first block on, and goes
on with what other tiers have, which is read into new blocks first. All loans together hold no more than
`MOST_SHARE` of the pool, since blocks that are held have no room for sequences.

The blocks of a choice that moves become a group of their own, under a handle of its own: it is offered as a
prefilled prompt is, and outlives the choice until it is released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.core.commands import BeginLoan, BlocksRead, PreCopy, StopAndCopy
from engine.core.groups.groups import Groups
from engine.core.memory.block_manager import BlockShortage
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.stores import BlockPool, KVTiers
from engine.core.report import Failure, Filled, Reading
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.request import FailureReason

MOST_SHARE = 0.25
"""The part of the pool that may be on loan."""


class Outgoing:
    """Holds blocks for other workers, and reports them."""

    def __init__(self, groups: Groups, tables: BlockTables, loans: Loans) -> None:
        self._groups = groups
        self._tables = tables
        self._loans = loans

    def apply(self, command: BeginLoan | PreCopy | StopAndCopy, now_s: float) -> None:
        """Hold the blocks that a command names until they are released, and report them."""
        match command:
            case BeginLoan():
                self._lend(command)
            case PreCopy(handle, choice, num_blocks, part):
                self._offer(handle, {choice: part}, now_s, num_blocks)
            case StopAndCopy(handle, parts):
                self._offer(handle, dict(parts), now_s)
                self._groups.report.parked.append(handle)
                self._groups.cancel(handle)

    # Loans

    @property
    def loans(self) -> list[list[int]]:
        """The blocks of each loan."""
        return self._loans.tables

    def has_loan(self, handle: int) -> bool:
        """Return True if a handle is that of a loan."""
        return handle in self._loans

    def _lend(self, lend: BeginLoan) -> None:
        """Lend blocks, once those in other tiers are read."""
        begun = self._loans.begin(lend)
        if isinstance(begun, Reading):
            self._groups.report.reads.append(begun)
        else:
            self._report_loan(lend.handle, begun)

    def end_read(self, read: BlocksRead) -> None:
        """Take in that the read of a loan is over."""
        self._report_loan(read.handle, self._loans.end_read(read.handle, read.num_blocks))

    def release(self, handle: int) -> None:
        """End a loan, at once or when its read is over."""
        if self._loans.release(handle):
            self._groups.report.freed.append(handle)
            self._groups.room.note_return()

    def _report_loan(self, handle: int, filled: Filled | None) -> None:
        """Report the blocks of a loan, or that it has none and is over."""
        if filled is not None:
            self._groups.report.filled.append(filled)
        else:
            self._groups.refuse(Failure(handle, FailureReason.NO_BLOCKS, "its blocks are not there to lend"))
            self._groups.room.note_return()

    # Moves

    def _offer(
        self, handle: int, parts: Mapping[int, int], now_s: float, num_blocks: int | None = None
    ) -> None:
        """Hold blocks of a handle's running choices, each under its handle in `parts`, until `Release`.

        Those are each choice's first `num_blocks`, by default all that are written to.
        """
        made = [
            part
            for choice in self._running(handle)
            if choice.index in parts
            and (part := self._part(choice, parts[choice.index], now_s, num_blocks)) is not None
        ]
        for group in made:
            self._groups.roster.add(group)
            self._groups.publish_blocks(group)
        handles = {group.handle for group in made}
        for part_handle in parts.values():
            if part_handle not in handles:
                message = "its blocks are not there to offer"
                self._groups.refuse(Failure(part_handle, FailureReason.DRAINING, message))

    def _running(self, handle: int) -> Iterator[Choice]:
        for group in self._groups.roster.pieces(handle):
            if group.phase is Phase.RUNNING:
                yield from group.choices

    def _part(
        self, choice: Choice, handle: int, now_s: float, num_blocks: int | None
    ) -> SequenceGroup | None:
        """Return a group that holds a choice's blocks; None if it has fewer full blocks than `num_blocks`."""
        blocks, num_tokens = self._tables.share_written(choice, num_blocks)
        if not blocks:
            return None
        group = choice.group
        spec = dataclasses.replace(
            group.spec,
            handle=handle,
            prompt_token_ids=(*group.spec.prompt_token_ids, *choice.output_token_ids)[:num_tokens],
            output_token_ids=(),
            choices=(choice.index,),
        )
        hashes = self._tables.names.of_full_blocks(spec, ())
        return SequenceGroup(
            next(self._groups.roster.keys),
            spec,
            Goal.HAND_OVER,
            group.rules,
            hashes,
            now_s,
            phase=Phase.HELD,
            block_table=blocks,
            num_computed_tokens=num_tokens,
        )


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

    def begin(self, lend: BeginLoan) -> Filled | Reading | None:
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

    def _hold(self, lend: BeginLoan) -> _Loan:
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
