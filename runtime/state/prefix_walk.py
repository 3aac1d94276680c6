"""How far one worker has the blocks of a prompt, found piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.state.records import Leading
from scheduling.memory.tiers import Tier


class PrefixWalk:
    """Goes along a prompt's blocks for as long as the worker has the next one: in its pool, then elsewhere.

    So does a worker with a prompt: behind the blocks in its pool it reads those in host memory, and behind
    these all that are in host memory or on its disk, up to the first one that is in neither.
    """

    __slots__ = ("_in_host", "_in_pool", "_on_disk", "_stage", "_tiers", "goes_on")

    def __init__(self, tiers: Sequence[Tier] = ()) -> None:
        """`tiers` are those that the worker has beside its pool."""
        self._tiers = tuple(tiers)
        self._stage = Tier.POOL
        """The slowest tier that is needed for the blocks so far."""
        self.goes_on = True
        """The worker has all blocks so far."""
        self._in_pool = self._in_host = self._on_disk = 0

    @property
    def found(self) -> Leading:
        return Leading(self._in_pool, self._on_disk, self._in_host)

    @property
    def asks(self) -> tuple[Tier, ...]:
        """Return the tiers that may have the next blocks: no longer the pool once it lacks one."""
        return (Tier.POOL, *self._tiers) if self._stage is Tier.POOL else self._tiers

    def take(self, rows: Mapping[Tier, Sequence[int]], num_blocks: int) -> None:
        """Take in, for each tier in `asks`, whether each of the next blocks is there."""
        place = 0
        if self._stage is Tier.POOL:
            place = _leading(rows[Tier.POOL])
            self._in_pool += place
            if place == num_blocks:
                return
            self._stage = Tier.HOST
        if self._stage is Tier.HOST:
            num_in_host = _leading(rows.get(Tier.HOST, ())[place:])
            self._in_host += num_in_host
            place += num_in_host
            if place == num_blocks:
                return
            self._stage = Tier.DISK
        others = [row[place:] for tier, row in rows.items() if tier is not Tier.POOL]
        num_behind = _leading([any(there) for there in zip(*others, strict=True)])
        self._on_disk += num_behind
        self.goes_on = place + num_behind == num_blocks


def _leading(row: Sequence[int]) -> int:
    return next((place for place, is_there in enumerate(row) if not is_there), len(row))
