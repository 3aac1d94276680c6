"""The beginning of a prompt counts by what it saves: in memory all of it, elsewhere all but the read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.prefixes import PrefixHits, least_held
from scheduling.cost_model import CostModel
from scheduling.memory.disk_reads import read_limit_s
from scheduling.memory.preemption import recompute_s
from scheduling.memory.prefix_reads import TierHit
from scheduling.prediction import HeldPrefix, PeerHit, PrefillView, RequestCost, own_prefill_s, prefill_speed

BLOCK = 16
COST = CostModel((0.01, 0.0, 1e-4, 0.0, 1e-8, 0.0), 32.0)
costs = st.builds(
    # A step takes at least as long as the tokens up to its knee would.
    lambda more, c3, c5, knee: CostModel((c3 * knee + more, 0.0, c3, 0.0, c5, 0.0), knee),
    st.floats(0, 0.1),
    st.floats(1e-6, 1e-3),
    st.floats(0, 1e-6),
    st.floats(0, 200),
)
blocks = st.integers(0, 100)
read_times = st.floats(0, 2)


def held(cached: int, on_disk: int, read_s: float, cost: CostModel = COST) -> HeldPrefix:
    hits = PrefixHits({"w": cached}, {"w": (TierHit(on_disk, read_s),)} if on_disk else {})
    return hits.held_by("w", BLOCK, cost)


def test_a_disk_that_is_fast_enough_counts_with_its_read() -> None:
    assert held(2, 3, 0.001) == HeldPrefix(5 * BLOCK, 0.001)


def test_a_disk_that_is_slower_than_computing_does_not_count() -> None:
    assert held(2, 3, 1.0) == HeldPrefix(2 * BLOCK)


def test_a_worker_that_is_not_known_holds_nothing() -> None:
    assert PrefixHits({"other": 3}).held_by("w", BLOCK, COST) == HeldPrefix(0)


@given(blocks, st.integers(1, 100), read_times, costs)
def test_the_router_counts_a_read_if_and_only_if_the_worker_begins_it(
    cached: int, on_disk: int, read_s: float, cost: CostModel
) -> None:
    begins = read_limit_s(on_disk * BLOCK, cached * BLOCK, read_s, cost) is not None
    assert held(cached, on_disk, read_s, cost) == (
        HeldPrefix((cached + on_disk) * BLOCK, read_s) if begins else HeldPrefix(cached * BLOCK)
    )


@given(blocks, blocks, read_times, st.integers(1, 2000), costs)
def test_memory_is_best_then_the_disk_then_computing(
    cached: int, on_disk: int, read_s: float, rest: int, cost: CostModel
) -> None:
    speed = prefill_speed(PrefillView(cost, 512))

    def own_s(prefix: HeldPrefix) -> float:
        num_tokens = (cached + on_disk) * BLOCK + rest
        request = RequestCost(num_tokens, prefix.num_tokens, 1, 1, read_s=prefix.read_s)
        return own_prefill_s(request, speed)

    in_memory = own_s(HeldPrefix((cached + on_disk) * BLOCK))
    with_disk = own_s(held(cached, on_disk, read_s, cost))
    assert in_memory <= with_disk * (1 + 1e-9)
    # The worker's rule takes every token for one of a full step. In the last step, those up to the knee cost
    # nothing, so reading may turn out that much slower.
    free_s = cost.coefficients[2] * cost.knee_tokens
    assert with_disk <= own_s(HeldPrefix(cached * BLOCK)) * (1 + 1e-9) + free_s + 1e-5


def test_host_memory_counts_alone_where_the_disk_behind_it_is_slow() -> None:
    def held_of(host_s: float, both_s: float) -> HeldPrefix:
        hits = PrefixHits({"w": 1}, {"w": (TierHit(4, host_s), TierHit(9, both_s))})
        return hits.held_by("w", BLOCK, COST)

    assert held_of(0.001, 0.002) == HeldPrefix(10 * BLOCK, 0.002)
    assert held_of(0.001, 1.0) == HeldPrefix(5 * BLOCK, 0.001)
    assert held_of(1.0, 2.0) == HeldPrefix(BLOCK)


# At another worker


def fetched(cached: int, *peers: PeerHit, disk: TierHit | None = None, cost: CostModel = COST) -> HeldPrefix:
    in_tiers = {} if disk is None else {"w": (disk,)}
    return PrefixHits({"w": cached}, in_tiers, {"w": peers}).held_by("w", BLOCK, cost)


def test_only_the_blocks_behind_those_in_memory_are_fetched() -> None:
    peer = PeerHit("other", 10, 0.001, 0.0001)
    assert fetched(4, peer) == HeldPrefix(10 * BLOCK, 0.001 + 6 * 0.0001, peer)
    assert fetched(10, peer) == HeldPrefix(10 * BLOCK)


def test_a_link_that_is_slower_than_computing_does_not_count() -> None:
    assert fetched(0, PeerHit("other", 10, 0.0, 1.0)) == HeldPrefix(0)
    assert fetched(0, PeerHit("other", 10, 1.0, 0.0)) == HeldPrefix(0)


def test_the_faster_way_to_the_same_blocks_is_taken() -> None:
    peer, disk = PeerHit("other", 10, 0.002, 0.0), TierHit(10, 0.001)
    assert fetched(0, peer, disk=disk) == HeldPrefix(10 * BLOCK, 0.001)
    assert fetched(0, peer, disk=TierHit(10, 0.003)) == HeldPrefix(10 * BLOCK, 0.002, peer)


def test_more_blocks_are_worth_more_time() -> None:
    few, many = PeerHit("few", 4, 0.0, 1e-4), PeerHit("many", 40, 0.001, 1e-4)
    assert fetched(0, few, many).peer == many
    assert fetched(0, few, PeerHit("many", 40, 0.1, 1e-4)).peer == few


peer_hits = st.builds(PeerHit, st.sampled_from("abc"), blocks, read_times, st.floats(0, 0.01))


@given(blocks, blocks, read_times, st.lists(peer_hits, max_size=2), costs)
def test_peers_never_make_a_worker_a_worse_choice(
    cached: int, on_disk: int, read_s: float, peers: list[PeerHit], cost: CostModel
) -> None:
    disk = TierHit(on_disk, read_s) if on_disk else None

    def saved_s(prefix: HeldPrefix) -> float:
        behind = prefix.num_tokens - cached * BLOCK
        return (recompute_s(behind, cost, cached * BLOCK) if behind else 0.0) - prefix.read_s

    assert saved_s(fetched(cached, *peers, disk=disk, cost=cost)) >= saved_s(
        fetched(cached, disk=disk, cost=cost)
    )


@given(st.lists(st.tuples(blocks, read_times), min_size=1, max_size=5))
def test_the_least_held_prefix_saves_no_more_than_any(prefixes: list[tuple[int, float]]) -> None:
    found = [HeldPrefix(num, read_s) for num, read_s in prefixes]
    least = least_held(found, 0.01)
    assert least in found
    saved_s = [prefix.num_tokens * 0.01 - prefix.read_s for prefix in found]
    assert least.num_tokens * 0.01 - least.read_s == min(saved_s)


def test_without_workers_nothing_is_held() -> None:
    assert least_held([], 0.01) == HeldPrefix(0)


def test_the_read_is_part_of_the_own_time() -> None:
    speed = prefill_speed(PrefillView(COST, 512))
    request = RequestCost(100, 48, 1, 1)
    assert own_prefill_s(request.with_cached(48, 0.25), speed) == pytest.approx(
        own_prefill_s(request, speed) + 0.25
    )
    assert request.with_cached(48) is request
