"""How far one worker has the blocks of a prompt, found piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from state.records import Leading


class PrefixWalk:
    """Goes along a prompt's blocks for as long as the worker has the next one: first in memory, then on disk.

    So does a worker with a prompt: behind the blocks in its memory it reads those on its disk, up to the
    first one that is not there.
    """

    __slots__ = ("_cached", "_on_disk", "asks_memory", "goes_on", "has_disk")

    def __init__(self, *, has_disk: bool) -> None:
        self.has_disk = has_disk
        self.asks_memory = True
        """All blocks so far are in memory; from the first one on that is not, only the disk counts."""
        self.goes_on = True
        """The worker has all blocks so far."""
        self._cached = self._on_disk = 0

    @property
    def found(self) -> Leading:
        return Leading(self._cached, self._on_disk)

    def take(self, in_memory: Sequence[int], on_disk: Sequence[int], num_blocks: int) -> None:
        """Take in whether each of the next blocks is there; a tier that was not asked gives an empty row."""
        place = 0
        if self.asks_memory:
            place = _leading(in_memory)
            self._cached += place
            self.asks_memory = place == num_blocks
        if self.asks_memory:
            return
        num_on_disk = _leading(on_disk[place:])
        self._on_disk += num_on_disk
        self.goes_on = place + num_on_disk == num_blocks


def _leading(row: Sequence[int]) -> int:
    return next((place for place, is_there in enumerate(row) if not is_there), len(row))
