"""Find the leading blocks of a prompt that workers have: in pools, host memory, on disks, and at each other.

A worker could fetch from any other. Few are offered to it, however many there are: the one with the most
blocks in its pool, the one with the most when those in host memory count as well, and the one with the most
in all. So the cost of a lookup grows with the number of workers as that of placement does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.state.records import Leading, LinkRecord, TierRecord, incarnation_of
from scheduling.admission.prefixes import PrefixHits
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier
from scheduling.prediction import PeerHit

_Records = Mapping[Tier, Mapping[str, TierRecord]]
"""The state of each tier beside the pool, by worker key."""


@dataclass(frozen=True, slots=True)
class _Lender:
    key: str
    num_blocks: int
    read_s: float
    """The time in which it reads other tiers before it lends."""


def prefix_hits(
    found: Mapping[str, Leading],
    tiers: _Records,
    links: Mapping[str, LinkRecord],
) -> PrefixHits:
    """Return what the directory has found as placement needs it; `links` names the workers that lend."""
    in_tiers = {key: hits for key, leading in found.items() if (hits := _tier_hits(key, leading, tiers))}
    cached = {key: leading.cached for key, leading in found.items()}
    lenders = _lenders(found, tiers, links)
    if not lenders:
        return PrefixHits(cached, in_tiers)
    at_peers = {key: peers for key in found if (peers := _peer_hits(key, cached[key], lenders, links))}
    return PrefixHits(cached, in_tiers, at_peers)


def _tier_hits(key: str, leading: Leading, tiers: _Records) -> tuple[TierHit, ...]:
    """Return what a worker could read: blocks in host memory, and these with those on its disk."""
    num_blocks, read_s, hits = 0, 0.0, []
    for tier, num_more in ((Tier.HOST, leading.in_host), (Tier.DISK, leading.on_disk)):
        record = tiers.get(tier, {}).get(key)
        if num_more and record is not None:
            num_blocks, read_s = num_blocks + num_more, read_s + record.read_s(num_more)
            hits.append(TierHit(num_blocks, read_s))
    return tuple(hits)


def _lenders(found: Mapping[str, Leading], tiers: _Records, links: Mapping[str, LinkRecord]) -> list[_Lender]:
    lending = [key for key in found if key in links]
    if len(lending) < 2:
        return []
    lenders: list[_Lender] = []
    in_pool: _Records = {}
    in_memory: _Records = {tier: records for tier, records in tiers.items() if tier is Tier.HOST}
    for some in (in_pool, in_memory, tiers):
        offers = (_offer(key, found[key], some) for key in lending)
        most = max(offers, key=lambda lender: lender.num_blocks)
        if not lenders or most.num_blocks > lenders[-1].num_blocks:
            lenders.append(most)
    return lenders


def _offer(key: str, leading: Leading, tiers: _Records) -> _Lender:
    """Return what a worker lends: what is in its pool, and what it reads from `tiers` behind that."""
    hits = _tier_hits(key, leading, tiers)
    if not hits:
        return _Lender(key, leading.cached, 0.0)
    return _Lender(key, leading.cached + hits[-1].num_blocks, hits[-1].read_s)


def _peer_hits(
    key: str, num_cached: int, lenders: list[_Lender], links: Mapping[str, LinkRecord]
) -> tuple[PeerHit, ...]:
    """Return what one worker could fetch: nothing that it has in its pool."""
    link = links.get(key)
    if link is None:
        return ()
    hits = []
    for lender in lenders:
        if lender.key != key and lender.num_blocks > num_cached:
            wait_s, block_s = link.speed_of(incarnation_of(lender.key))
            hits.append(PeerHit(lender.key, lender.num_blocks, wait_s + lender.read_s, block_s))
    return tuple(hits)
