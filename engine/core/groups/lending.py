"""Blocks that are lent to other workers: each loan has a handle, as a group does, and no group."""

from __future__ import annotations

from engine.core.commands import BlocksRead, Lend, Release, SequenceCommand
from engine.core.groups.registry import GroupRegistry
from engine.core.memory.loans import Loans
from engine.core.memory.room import Room
from engine.core.report import Failure, Filled, Reading
from scheduling.request import FailureReason


class Lending:
    """Begins and ends loans, and reports them."""

    def __init__(self, loans: Loans, registry: GroupRegistry, room: Room) -> None:
        self._loans = loans
        self._registry = registry
        self._room = room

    @property
    def tables(self) -> list[list[int]]:
        """The blocks of each loan."""
        return self._loans.tables

    def apply(self, command: SequenceCommand) -> bool:
        """Carry out a command for a loan; return False, and do nothing, if it is not for one."""
        match command:
            case Lend():
                self._begin(command)
            case BlocksRead(handle, num_blocks) if handle in self._loans:
                self._report(handle, self._loans.end_read(handle, num_blocks))
            case Release(handle) if handle in self._loans:
                self._release(handle)
            case _:
                return False
        return True

    def _begin(self, lend: Lend) -> None:
        """Lend blocks, once those in other tiers are read."""
        begun = self._loans.begin(lend)
        if isinstance(begun, Reading):
            self._registry.report.reads.append(begun)
        else:
            self._report(lend.handle, begun)

    def _release(self, handle: int) -> None:
        """End a loan, at once or when its read is over."""
        if self._loans.release(handle):
            self._registry.report.freed.append(handle)
            self._room.note_return()

    def _report(self, handle: int, filled: Filled | None) -> None:
        """Report the blocks of a loan, or that it has none and is over."""
        if filled is not None:
            self._registry.report.filled.append(filled)
        else:
            self._registry.refuse(
                Failure(handle, FailureReason.NO_BLOCKS, "its blocks are not there to lend")
            )
            self._room.note_return()
