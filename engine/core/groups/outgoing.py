"""Blocks that other workers copy: loans of cached ones, and those of running sequences that move.

A loan has a handle, as a group does, and no group. The blocks of a choice that moves become a group of their
own, under a handle of its own: it is offered as a prefilled prompt is, and outlives the choice until it is
released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from engine.core.commands import BlocksRead, Lend, PreCopy, StopAndCopy
from engine.core.groups.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.loans import Loans
from engine.core.report import Failure, Filled, Reading
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.request import FailureReason


class Outgoing:
    """Holds blocks for other workers, and reports them."""

    def __init__(self, groups: Groups, tables: BlockTables, loans: Loans) -> None:
        self._groups = groups
        self._tables = tables
        self._loans = loans

    def apply(self, command: Lend | PreCopy | StopAndCopy, now_s: float) -> None:
        """Hold the blocks that a command names until they are released, and report them."""
        match command:
            case Lend():
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

    def _lend(self, lend: Lend) -> None:
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
