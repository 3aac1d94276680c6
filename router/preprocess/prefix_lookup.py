"""Find the leading blocks of a prompt that workers have: in memory, on their disks, and at each other.

A worker could fetch from any other. Two are offered to it, however many there are: the one with the most
blocks in memory, and the one with the most in all, if that has more on its disk. So the cost of a lookup
grows with the number of workers as that of placement does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.admission.prefixes import DiskHit, PeerHit, PrefixHits
from state.records import DiskRecord, Leading, LinkRecord, incarnation_of


@dataclass(frozen=True, slots=True)
class _Lender:
    key: str
    num_blocks: int
    disk_s: float
    """The time in which it reads its disk before it lends."""


def prefix_hits(
    found: Mapping[str, Leading], disks: Mapping[str, DiskRecord], links: Mapping[str, LinkRecord]
) -> PrefixHits:
    """Return what the directory has found as placement needs it; `links` names the workers that lend."""
    on_disk = {
        key: DiskHit(leading.on_disk, disks[key].read_s(leading.on_disk))
        for key, leading in found.items()
        if leading.on_disk and key in disks
    }
    cached = {key: leading.cached for key, leading in found.items()}
    lenders = _lenders(found, on_disk, links)
    if not lenders:
        return PrefixHits(cached, on_disk)
    at_peers = {key: hits for key in found if (hits := _hits_of(key, found[key], lenders, links))}
    return PrefixHits(cached, on_disk, at_peers)


def _lenders(
    found: Mapping[str, Leading], on_disk: Mapping[str, DiskHit], links: Mapping[str, LinkRecord]
) -> list[_Lender]:
    lending = [key for key in found if key in links]
    if len(lending) < 2:
        return []
    most = max(lending, key=lambda key: found[key].cached)
    lenders = [_Lender(most, found[most].cached, 0.0)]
    with_disk = max(lending, key=lambda key: _num_held(found[key]))
    if _num_held(found[with_disk]) > found[most].cached:
        lenders.append(_Lender(with_disk, _num_held(found[with_disk]), on_disk[with_disk].read_s))
    return lenders


def _num_held(leading: Leading) -> int:
    return leading.cached + leading.on_disk


def _hits_of(
    key: str, own: Leading, lenders: list[_Lender], links: Mapping[str, LinkRecord]
) -> tuple[PeerHit, ...]:
    """Return what one worker could fetch: nothing that it has in memory."""
    link = links.get(key)
    if link is None:
        return ()
    hits = []
    for lender in lenders:
        if lender.key != key and lender.num_blocks > own.cached:
            wait_s, block_s = link.speed_of(incarnation_of(lender.key))
            hits.append(PeerHit(lender.key, lender.num_blocks, wait_s + lender.disk_s, block_s))
    return tuple(hits)
