"""Tenants' counters under any order of requests, and what a fleet that refuses by them hands out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission import shares
from scheduling.admission.shares import (
    ACTIVE_MS,
    BAND_S,
    FREE_S,
    FULL_PART,
    FULL_S,
    MAX_DEBTS,
    Standing,
    TenantWeights,
    TokenCounters,
    allowed_lead,
    virtual_tokens,
)

BURST = 50.0
TENANTS = st.sampled_from("abcd")
GAPS_MS = st.one_of(st.integers(0, 500), st.integers(ACTIVE_MS - 2, ACTIVE_MS + 2))
REQUESTS = st.lists(st.tuples(TENANTS, st.integers(0, 100), GAPS_MS), max_size=60)


@given(REQUESTS)
def test_a_counter_never_falls_while_anybody_is_active(requests: list[tuple[str, int, int]]) -> None:
    counters, now, last = TokenCounters(), 0, dict.fromkeys("abcd", 0.0)
    for tenant, tokens, gap_ms in requests:
        now += gap_ms
        standing = counters.charge(tenant, tokens, BURST, now)
        if standing.others == 0 and gap_ms >= ACTIVE_MS:
            last = dict.fromkeys("abcd", 0.0)
        assert standing.counter >= last[tenant]
        last[tenant] = standing.counter


@given(REQUESTS, TENANTS)
def test_who_comes_back_starts_no_lower_than_the_least_active(
    requests: list[tuple[str, int, int]], idler: str
) -> None:
    counters = TokenCounters()
    before = counters.charge(idler, 10, math.inf, 0)
    now = ACTIVE_MS
    for tenant, tokens, gap_ms in requests:
        if tenant != idler:
            now += gap_ms
            counters.charge(tenant, tokens, math.inf, now)
    after = counters.charge(idler, 10, math.inf, now)
    assert after.counter >= 10 + (after.least or 0)
    if after.others == 0:
        assert after.counter == before.counter


def test_a_lead_outlives_idleness_until_the_others_have_caught_up() -> None:
    counters = TokenCounters()
    counters.charge("behind", 1, BURST, 0)
    counters.charge("ahead", 100, BURST, 0)
    for now in range(ACTIVE_MS // 2, 6 * ACTIVE_MS, ACTIVE_MS // 2):
        counters.charge("behind", 1, BURST, now)
    assert counters.charge("ahead", 1, BURST, 6 * ACTIVE_MS).is_over
    counters.charge("behind", 60, BURST, 6 * ACTIVE_MS)
    assert not counters.charge("ahead", 1, BURST, 6 * ACTIVE_MS).is_over


@given(st.lists(st.tuples(st.integers(0, 10**6), GAPS_MS), max_size=40))
def test_a_tenant_alone_is_never_over_its_share(requests: list[tuple[int, int]]) -> None:
    counters, now = TokenCounters(), 0
    for tokens, gap_ms in requests:
        now += gap_ms
        standing = counters.charge("only", tokens, 0.0, now)
        assert (standing.is_over, standing.least, standing.others) == (False, None, 0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 100)), max_size=200))
def test_two_backlogged_tenants_stay_within_a_burst_and_a_request(requests: list[tuple[str, int]]) -> None:
    counters = TokenCounters()
    held = {name: counters.charge(name, 0, BURST, 0).counter for name in "ab"}
    for tenant, tokens in requests:
        held[tenant] = counters.charge(tenant, tokens, BURST, 0).counter
        assert abs(held["a"] - held["b"]) <= BURST + 100


@given(
    st.dictionaries(TENANTS, st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(0, 20)), min_size=10, max_size=200),
)
def test_backlogged_tenants_are_served_in_proportion_to_their_weights(
    weights: Mapping[str, float], requests: list[tuple[int, int, int]]
) -> None:
    """Per weight, any two are at most a burst and one request's charge apart, whoever asks most often."""
    counters, by_tenant = TokenCounters(), TenantWeights(weights)
    names, served = sorted(weights), Counter[str]()
    for name in names:
        counters.charge(name, 0, BURST, 0)
    largest = 0.0
    for i, prompt, output in requests:
        name = names[i % len(names)]
        tokens = virtual_tokens(prompt, output, by_tenant.of(name))
        largest = max(largest, tokens)
        if not counters.charge(name, tokens, BURST, 0).is_over:
            served[name] += prompt + 2 * output
    per_weight = [served[name] / by_tenant.of(name) for name in names]
    assert max(per_weight) - min(per_weight) <= BURST + largest + 1e-6


@given(REQUESTS, TENANTS, st.integers(1, 100))
def test_a_refund_leaves_a_tenant_as_it_was(
    requests: list[tuple[str, int, int]], tenant: str, tokens: int
) -> None:
    counters, now = TokenCounters(), 0
    for name, amount, gap_ms in requests:
        now += gap_ms
        counters.charge(name, amount, math.inf, now)
    before = counters.charge(tenant, 0, math.inf, now)
    counters.charge(tenant, tokens, math.inf, now)
    counters.refund(tenant, tokens, now)
    assert counters.charge(tenant, 0, math.inf, now) == before


def test_a_refund_never_goes_below_zero_and_idle_tenants_get_none() -> None:
    counters = TokenCounters()
    counters.charge("a", 5, BURST, 0)
    counters.refund("a", 50, 0)
    assert counters.charge("a", 0, BURST, 0).counter == 0
    counters.refund("a", 50, ACTIVE_MS)
    assert len(counters) == 0


def test_a_tenant_over_its_share_gets_a_retry_after_and_no_charge() -> None:
    counters = TokenCounters()
    counters.charge("b", 0, BURST, 0)
    counters.charge("c", 10, BURST, 0)
    assert counters.charge("a", 110, BURST, 0) == Standing(110, 0, 2, is_over=False)
    refused = counters.charge("a", 7, BURST, 0)
    assert refused == Standing(110, 0, 2, is_over=True)
    assert refused.catch_up_s(BURST, rate=30.0) == pytest.approx(60 * 2 / 30)
    assert Standing(40, 0, 1, is_over=False).catch_up_s(BURST, 30.0) == 0
    assert Standing(40, None, 0, is_over=False).catch_up_s(BURST, 30.0) == 0


def test_tenants_that_went_are_forgotten() -> None:
    counters = TokenCounters()
    counters.charge("least", 0, math.inf, 0)
    for i in range(MAX_DEBTS + 50):
        counters.charge(f"t{i}", i + 1, math.inf, 0)
    counters.charge("least", 0, math.inf, ACTIVE_MS - 1)
    counters.charge("least", 0, math.inf, ACTIVE_MS)
    assert len(counters) == MAX_DEBTS + 1
    assert counters.charge("t49", 0, math.inf, ACTIVE_MS).counter == 0
    assert counters.charge("t50", 0, math.inf, ACTIVE_MS).counter == 51
    counters.charge("new", 0, math.inf, 3 * ACTIVE_MS)
    assert len(counters) == 1


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e-4, 1001])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    accepted = "accepted: from 0.001 to 1000"
    with pytest.raises(ValueError, match=rf"by_tenant\['a'\] is {weight}; {accepted}"):
        TenantWeights({"a": weight})
    with pytest.raises(ValueError, match=f"default is {weight}; {accepted}"):
        TenantWeights(default=weight)
    with pytest.raises(ValueError, match=f"weight is {weight}; {accepted}"):
        virtual_tokens(1, 1, weight)


@pytest.mark.parametrize("tokens", [-1, math.nan, math.inf])
def test_a_charge_that_would_spoil_a_counter_is_refused(tokens: float) -> None:
    with pytest.raises(ValueError, match=f"tokens is {tokens}; accepted: finite, from 0"):
        TokenCounters().charge("a", tokens, BURST, 0)
    with pytest.raises(ValueError, match=f"tokens is {tokens}; accepted: finite, from 0"):
        TokenCounters().refund("a", tokens, 0)


@pytest.mark.parametrize("wrong", [-1, math.nan])
def test_a_lead_or_band_below_nothing_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"lead is {wrong}; accepted: from 0"):
        TokenCounters().charge("a", 1, wrong, 0)
    with pytest.raises(ValueError, match=f"band is {wrong}; accepted: above 0"):
        TokenCounters().charge("a", 1, 0, 0, wrong)


@given(REQUESTS)
def test_nobody_is_ahead_by_more_than_a_band_and_its_own_request(
    requests: list[tuple[str, int, int]],
) -> None:
    counters, now = TokenCounters(), 0
    for tenant, tokens, gap_ms in requests:
        now += gap_ms
        standing = counters.charge(tenant, tokens, math.inf, now, BURST)
        lead = counters.charge(tenant, 0, BURST, now, BURST)
        assert not lead.is_over
        assert standing.least is None or standing.counter - tokens - standing.least <= BURST


def test_the_longer_the_queue_the_less_a_tenant_may_be_ahead() -> None:
    assert allowed_lead(FREE_S, 100) == math.inf
    assert allowed_lead((FREE_S + FULL_S) / 2, 100) == pytest.approx(50)
    assert allowed_lead(FULL_S, 100) == allowed_lead(9 * FULL_S, 100) == 0


@given(st.floats(0.01, 100), st.floats(0, 100))
def test_who_cannot_wait_long_finds_a_shorter_queue_long(patience_s: float, waiting_s: float) -> None:
    lead = allowed_lead(waiting_s, 100, patience_s)
    assert lead <= allowed_lead(waiting_s, 100)
    assert lead == math.inf or waiting_s > 0
    # Past this, whoever has had least must still find room within the time to first token.
    assert lead == 0 or waiting_s < FULL_PART * patience_s


@pytest.mark.parametrize(
    ("asked", "sizes", "weights", "expected"),
    [
        ({"a": 3.0}, {"a": 500}, {}, {"a": 1.0}),
        ({"a": 3.0, "b": 0.2}, {"a": 500, "b": 500}, {}, {"a": 0.8, "b": 0.2}),
        ({"a": 3.0, "b": 3.0}, {"a": 5000, "b": 100}, {}, {"a": 0.5, "b": 0.5}),
        (
            {"a": 3.0, "b": 1.0, "c": 0.1},
            {"a": 500, "b": 500, "c": 50},
            {},
            {"a": 0.45, "b": 0.45, "c": 0.1},
        ),
        (
            {"a": 3.0, "b": 3.0, "c": 0.1},
            {"a": 500, "b": 500, "c": 500},
            {"a": 2.0},
            {"a": 0.6, "b": 0.3, "c": 0.1},
        ),
    ],
)
def test_a_busy_fleet_is_shared_max_min_fairly_without_idling(
    asked: dict[str, float], sizes: dict[str, int], weights: dict[str, float], expected: dict[str, float]
) -> None:
    """A tenant that asks for less than its share gets all of it; the others get the rest by weight."""
    served = play(asked, sizes, TenantWeights(weights))
    for tenant, share in expected.items():
        assert served[tenant] == pytest.approx(share, abs=0.03)


def play(asked: dict[str, float], sizes: dict[str, int], weights: TenantWeights) -> dict[str, float]:
    """Requests at an even pace, `asked` times what one server can do, served in order of arrival."""
    rate, seconds, longest_s = 10_000.0, 100.0, 5.0
    arrivals = sorted(
        (i * sizes[name] / (times * rate), name)
        for name, times in asked.items()
        for i in range(int(seconds * times * rate / sizes[name]))
    )
    counters, band = TokenCounters(), BAND_S * rate
    served: Counter[str] = Counter()
    free_at = 0.0
    for now, name in arrivals:
        waiting_s, tokens = max(0.0, free_at - now), sizes[name] / weights.of(name)
        lead = allowed_lead(waiting_s, band)
        if counters.charge(name, tokens, lead, round(now * 1000), band).is_over:
            continue
        if waiting_s > longest_s:
            counters.refund(name, tokens, round(now * 1000))
            continue
        free_at = max(free_at, now) + sizes[name] / rate
        served[name] += sizes[name]
    return {name: served[name] / (rate * max(seconds, free_at)) for name in asked}


def test_generated_tokens_weigh_more_and_weights_divide() -> None:
    assert virtual_tokens(10, 5, 1.0) == 10 + shares.OUTPUT_WEIGHT * 5
    assert virtual_tokens(10, 5, 4.0) == virtual_tokens(10, 5, 1.0) / 4
