"""Workers are offered blocks of few others, and never fewer than they have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.intake.prefix_lookup import prefix_hits
from runtime.state.records import Leading, LinkRecord, TierRecord
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier
from scheduling.prediction import PeerHit

LINK = LinkRecord(0.01, 0.001)
DISK = TierRecord(1000, 0.002, 0.003)
HOST = TierRecord(100, 0.001, 0.0002)


def key(number: int) -> str:
    return f"w{number}:i{number}"


def test_the_worker_with_the_most_in_memory_is_offered_to_the_others() -> None:
    found = {key(0): Leading(2), key(1): Leading(9), key(2): Leading(9)}
    hits = prefix_hits(found, {}, dict.fromkeys(found, LINK))
    assert hits.cached == {key(0): 2, key(1): 9, key(2): 9}
    assert hits.at_peers == {key(0): (PeerHit(key(1), 9, 0.01, 0.001),)}


def test_a_disk_with_more_is_offered_with_its_time() -> None:
    found = {key(0): Leading(0), key(1): Leading(5), key(2): Leading(1, 7)}
    hits = prefix_hits(found, {Tier.DISK: {key(2): DISK}}, dict.fromkeys(found, LINK))
    on_disk = PeerHit(key(2), 8, 0.01 + DISK.read_s(7), 0.001)
    assert hits.in_tiers == {key(2): (TierHit(7, DISK.read_s(7)),)}
    assert hits.at_peers == {
        key(0): (PeerHit(key(1), 5, 0.01, 0.001), on_disk),
        key(1): (on_disk,),
        key(2): (PeerHit(key(1), 5, 0.01, 0.001),),
    }


def test_the_speed_is_that_of_the_link_where_it_was_measured() -> None:
    found = {key(0): Leading(0), key(1): Leading(5), key(2): Leading(0)}
    links = dict.fromkeys(found, LINK) | {key(0): LinkRecord(0.01, 0.001, {"i1": (0.5, 0.25)})}
    hits = prefix_hits(found, {}, links)
    assert hits.at_peers[key(0)] == (PeerHit(key(1), 5, 0.5, 0.25),)
    assert hits.at_peers[key(2)] == (PeerHit(key(1), 5, 0.01, 0.001),)


def test_workers_that_do_not_share_neither_lend_nor_fetch() -> None:
    found = {key(0): Leading(0), key(1): Leading(9), key(2): Leading(4)}
    assert prefix_hits(found, {}, {}).at_peers == {}
    assert prefix_hits(found, {}, {key(0): LINK}).at_peers == {}
    assert prefix_hits(found, {}, {key(0): LINK, key(2): LINK}).at_peers == {
        key(0): (PeerHit(key(2), 4, 0.01, 0.001),)
    }


def test_host_memory_counts_alone_and_with_the_disk_behind_it() -> None:
    found = {key(0): Leading(2, 3, 4), key(1): Leading(0, 0, 1), key(2): Leading(1, 6)}
    tiers = {Tier.HOST: {key(0): HOST, key(1): HOST}, Tier.DISK: {key(0): DISK, key(2): DISK}}
    hits = prefix_hits(found, tiers, {})
    both_s = HOST.read_s(4) + DISK.read_s(3)
    assert hits.in_tiers == {
        key(0): (TierHit(4, HOST.read_s(4)), TierHit(7, both_s)),
        key(1): (TierHit(1, HOST.read_s(1)),),
        key(2): (TierHit(6, DISK.read_s(6)),),
    }


def test_more_in_host_memory_is_offered_before_more_on_a_disk() -> None:
    found = {key(0): Leading(5), key(1): Leading(1, 0, 6), key(2): Leading(0, 9), key(3): Leading(0)}
    tiers = {Tier.HOST: {key(1): HOST}, Tier.DISK: {key(2): DISK}}
    hits = prefix_hits(found, tiers, dict.fromkeys(found, LINK))
    assert hits.at_peers[key(3)] == (
        PeerHit(key(0), 5, 0.01, 0.001),
        PeerHit(key(1), 7, 0.01 + HOST.read_s(6), 0.001),
        PeerHit(key(2), 9, 0.01 + DISK.read_s(9), 0.001),
    )


leadings = st.builds(Leading, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))


@given(st.lists(leadings, max_size=6))
def test_nobody_is_offered_what_it_has_and_few_are_offered(rows: list[Leading]) -> None:
    found = {key(number): leading for number, leading in enumerate(rows)}
    tiers = {Tier.HOST: dict.fromkeys(found, HOST), Tier.DISK: dict.fromkeys(found, DISK)}
    hits = prefix_hits(found, tiers, dict.fromkeys(found, LINK))
    assert len({peer.source for peers in hits.at_peers.values() for peer in peers}) <= 3
    for worker_key, peers in hits.at_peers.items():
        for peer in peers:
            assert peer.source != worker_key
            assert peer.num_blocks > found[worker_key].cached
            source = found[peer.source]
            assert peer.num_blocks <= source.cached + source.in_host + source.on_disk
