"""Decides whether memory has room for a group to start, or to come back, and gives it blocks if so."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.core.memory.block_manager import BlockShortage
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.forecast import MemoryForecast
from engine.core.memory.preempter import Preempter
from engine.core.sequence import Phase, SequenceGroup

MAX_TURNS_UNASKED = 16
"""A group that there was no room for is looked at again when blocks come back, or after so many turns."""


class Room:
    """Gives groups the blocks they start with, if there are enough until all end, as is expected."""

    def __init__(self, tables: BlockTables, forecast: MemoryForecast, preempter: Preempter) -> None:
        self._tables = tables
        self._forecast = forecast
        self._preempter = preempter
        self._refused_key: int | None = None
        self._num_turns_unasked = 0

    def note_return(self) -> None:
        """Blocks came back: a group that was refused may be asked again."""
        self._refused_key = None

    def num_turns_in_vain(self, head: SequenceGroup) -> int:
        """Return for how many turns `head`, for which there was no room, will not be looked at."""
        return MAX_TURNS_UNASKED - self._num_turns_unasked if head.key == self._refused_key else 0

    def pass_turns(self, num_turns: int) -> None:
        """Turns have passed in which a refused group was not looked at."""
        self._num_turns_unasked += num_turns

    def take(self, group: SequenceGroup, holders: Iterable[SequenceGroup], *, is_idle: bool) -> bool:
        """Return True if the group has its blocks now; `holders` are all groups that have some.

        A group that was refused is looked at again when blocks have come back, after `MAX_TURNS_UNASKED`
        turns, or if nothing runs (`is_idle`).
        """
        if group.key == self._refused_key and not is_idle and self._num_turns_unasked < MAX_TURNS_UNASKED:
            self._num_turns_unasked += 1
            return False
        self._num_turns_unasked = 0
        has_room = self._swap_in if group.phase is Phase.SWAPPED else self._reserve
        is_in = has_room(group, holders)
        self._refused_key = None if is_in else group.key
        if is_in:
            self._forecast.add(group)
        return is_in

    def _reserve(self, group: SequenceGroup, holders: Iterable[SequenceGroup]) -> bool:
        prefix = (
            group.block_hashes
            if group.receives and not group.lacks_newest
            else self._tables.computable_prefix(group)
        )
        try:
            self._tables.reserve(group, prefix)
        except BlockShortage:
            return False
        if not (self._tables.reserves_maximum or self._forecast.fits(chain(holders, [group]), group)):
            self._tables.return_context(group)
            return False
        return True

    def _swap_in(self, group: SequenceGroup, holders: Iterable[SequenceGroup]) -> bool:
        if not self._forecast.fits(holders, group):
            return False
        try:
            self._preempter.swap_in(group)
        except BlockShortage:
            return False
        return True
