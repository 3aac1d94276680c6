"""The beginning of a prompt that workers have, and what it takes each of them to use it.

    time of the prompt = time to read what the worker lacks in memory, if it reads + time to compute the rest

A worker reads the blocks behind those in its pool, from host memory, its disk or another worker, only if that
is expected to be faster than computing them. It and the router decide that by the same rule
(`scheduling/memory/prefix_reads.py`), so no tier and no other worker ever makes a worker a worse choice. Hits
are hints: wrong ones cost time, since workers look for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from scheduling.cost_model import CostModel
from scheduling.memory.prefix_reads import PrefixRead, TierHit, choose_read
from scheduling.prediction import HeldPrefix, PeerHit
from scheduling.value import value


@value
class PrefixHits:
    """Leading blocks of a prompt that workers have, by worker key."""

    cached: Mapping[str, int] = field(default_factory=dict)
    """In their pools."""
    in_tiers: Mapping[str, tuple[TierHit, ...]] = field(default_factory=dict)
    """The ways in which each worker could read blocks behind these from its other tiers, shorter first."""
    at_peers: Mapping[str, tuple[PeerHit, ...]] = field(default_factory=dict)
    """Where each worker could fetch more than it has: from few others, however many there are."""

    has_any: bool = field(init=False, repr=False, compare=False)
    """Some worker has some of the prompt."""
    has_reads: bool = field(init=False, repr=False, compare=False)
    """Some worker could read some of the prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_any", bool(self.cached or self.in_tiers))
        object.__setattr__(self, "has_reads", bool(self.in_tiers or self.at_peers))

    def held_by(self, worker_key: str, block_size: int, cost: CostModel) -> HeldPrefix:
        """Return what a worker with these step costs would not compute."""
        num_cached = self.cached.get(worker_key, 0)
        reads: list[tuple[PrefixRead, PeerHit | None]] = [
            (PrefixRead(hit.num_blocks * block_size, hit.read_s), None)
            for hit in self.in_tiers.get(worker_key, ())
        ]
        for peer in self.at_peers.get(worker_key, ()):
            num_blocks = peer.num_blocks - num_cached
            if num_blocks > 0:
                read_s = peer.wait_s + num_blocks * peer.block_s
                reads.append((PrefixRead(num_blocks * block_size, read_s), peer))
        num_tokens = num_cached * block_size
        chosen = choose_read([read for read, _ in reads], num_tokens, cost) if reads else None
        if chosen is None:
            return HeldPrefix(num_tokens)
        read, source = reads[chosen.place]
        return HeldPrefix(num_tokens + read.num_tokens, read.read_s, source)

    def most_cached(self) -> int:
        """Return the blocks in the pool of the worker that has the most there."""
        return max(self.cached.values(), default=0)

    def most_held(self) -> int:
        """Return the blocks that the worker with the most has, in all its tiers."""
        behind = (self.cached.get(key, 0) + hits[-1].num_blocks for key, hits in self.in_tiers.items())
        return max(self.most_cached(), *behind, 0)


NO_HITS = PrefixHits()


def least_held(held: Iterable[HeldPrefix], token_s: float) -> HeldPrefix:
    """Return the prefix that saves the least, where computing a token takes `token_s`; nothing if none is."""
    return min(held, key=lambda prefix: prefix.num_tokens * token_s - prefix.read_s, default=HeldPrefix(0))
