"""The beginning of a prompt that workers have, in memory or on a disk, and what it takes to use it.

    time of the prompt = time to read what is on the disk, if the worker reads it + time to compute the rest

A worker reads the blocks behind those in its memory only if that is expected to be faster than computing
them. It and the router decide that by the same rule (`scheduling/memory/disk_reads.py`), so a disk never
makes a worker a worse choice. Hits are hints: wrong ones cost time, since workers look for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from scheduling.cost.cost_model import CostModel
from scheduling.memory.disk_reads import read_limit_s
from scheduling.value import value


@value
class DiskHit:
    """Blocks of a prompt on a worker's disk, behind those in its memory."""

    num_blocks: int
    read_s: float
    """How long the worker expects a read of all of them to take."""


@value
class PrefixHits:
    """Leading blocks of a prompt that workers have, by worker key."""

    cached: Mapping[str, int] = field(default_factory=dict)
    """In memory."""
    on_disk: Mapping[str, DiskHit] = field(default_factory=dict)

    @property
    def has_any(self) -> bool:
        return bool(self.cached or self.on_disk)

    def held_by(self, worker_key: str, block_size: int, cost: CostModel) -> HeldPrefix:
        """Return what a worker with these step costs would not compute."""
        num_cached = self.cached.get(worker_key, 0) * block_size
        hit = self.on_disk.get(worker_key)
        if hit is None:
            return HeldPrefix(num_cached)
        num_read = hit.num_blocks * block_size
        if read_limit_s(num_read, num_cached, hit.read_s, cost) is None:
            return HeldPrefix(num_cached)
        return HeldPrefix(num_cached + num_read, hit.read_s)

    def most_cached(self) -> int:
        """Return the blocks in the memory of the worker that has the most there."""
        return max(self.cached.values(), default=0)

    def most_held(self) -> int:
        """Return the blocks that the worker with the most has, those on its disk included."""
        behind = (self.cached.get(key, 0) + hit.num_blocks for key, hit in self.on_disk.items())
        return max(self.most_cached(), *behind, 0)


NO_HITS = PrefixHits()


@value
class HeldPrefix:
    """The part of a prompt that a worker does not compute."""

    num_tokens: int
    read_s: float = 0.0
    """The time to read it, as far as it is on a disk."""


def least_held(held: Iterable[HeldPrefix], token_s: float) -> HeldPrefix:
    """Return the prefix that saves the least, where computing a token takes `token_s`; nothing if none is."""
    return min(held, key=lambda prefix: prefix.num_tokens * token_s - prefix.read_s, default=HeldPrefix(0))
