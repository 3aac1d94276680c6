"""Which worker computes a prompt, and which path a request goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import (
    Path,
    PathCandidate,
    PrefillCandidate,
    choose_conditional,
    choose_prefill_worker,
)

IDLE = PrefillCandidate("p0", draining=False, avoided=False, wait_s=0.0, own_s=0.1)
OWN = PathCandidate(Path.AGGREGATED, "d0", "d0", ttft_s=0.2, worker_s=0.1, meets=True)
APART = PathCandidate(Path.DISAGGREGATED, "p0", "d0", ttft_s=0.1, worker_s=0.2, meets=True)

seconds = st.sampled_from([0.1, 0.2, 0.3])
prefills = st.lists(
    st.builds(
        PrefillCandidate, st.text("abc", min_size=1, max_size=2), st.booleans(), st.booleans(), seconds,
        seconds, st.integers(0, 2),
    ),
    max_size=5,
    unique_by=lambda one: one.key,
)  # fmt: skip
paths = st.lists(
    st.builds(
        PathCandidate, st.sampled_from(Path), st.sampled_from("pq"), st.sampled_from("de"), seconds, seconds,
        st.booleans(), st.booleans(), st.booleans(),
    ),
    max_size=6,
    unique_by=lambda one: (one.prefill_key, one.decode_key),
)  # fmt: skip


@given(prefills)
def test_the_prefill_worker_is_the_earliest_that_is_open(found: list[PrefillCandidate]) -> None:
    choice = choose_prefill_worker(found)
    fitting = [one for one in found if not one.draining]
    trusted = [one for one in fitting if not one.avoided] or fitting
    assert (choice is None) == (not fitting)
    if choice is not None:
        assert choice.first_token_s == min(one.first_token_s for one in trusted)
        assert choice == choose_prefill_worker(found[::-1])


def test_a_held_prefix_beats_a_shorter_queue_by_what_it_saves() -> None:
    holder = replace(IDLE, key="p1", wait_s=0.05, own_s=0.02, cached_tokens=800)
    choice = choose_prefill_worker([IDLE, holder])
    assert choice is not None
    assert (choice.worker_key, choice.reason) == ("p1", "earliest of 2, 800 tokens held")
    late = choose_prefill_worker([IDLE, replace(holder, wait_s=0.09)])
    assert late is not None
    assert late.worker_key == "p0"


def test_of_two_as_early_the_one_that_computes_less() -> None:
    holder = replace(IDLE, key="p1", wait_s=0.05, own_s=0.05, cached_tokens=500)
    choice = choose_prefill_worker([IDLE, holder])
    assert choice is not None
    assert choice.worker_key == "p1"


@given(paths)
def test_a_path_that_holds_is_taken_whenever_there_is_one(found: list[PathCandidate]) -> None:
    choice = choose_conditional(found)
    assert (choice is None) == (not found)
    if choice is not None:
        assert choice.holds == any(one.meets and not one.harms for one in found)
        assert choice.candidate.harms is False or all(one.harms for one in found)


@given(paths)
def test_no_path_that_holds_is_earlier_or_as_early_and_cheaper(found: list[PathCandidate]) -> None:
    choice = choose_conditional(found)
    if choice is None or not choice.holds:
        return
    rivals = [
        one
        for one in found
        if one.meets and not one.harms and one.within_share >= choice.candidate.within_share
    ]
    picked = choice.candidate
    assert (picked.ttft_s, picked.worker_s) == min((one.ttft_s, one.worker_s) for one in rivals)


@given(paths, st.randoms(use_true_random=False))
def test_the_order_of_the_paths_does_not_matter(found: list[PathCandidate], draw: object) -> None:
    shuffled = list(found)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert choose_conditional(found) == choose_conditional(shuffled)


def test_a_path_that_harms_is_taken_only_where_all_do() -> None:
    harmful = replace(APART, harms=True)
    late = replace(OWN, meets=False)
    choice = choose_conditional([harmful, late])
    assert choice is not None
    assert (choice.candidate, choice.holds) == (late, False)
    only = choose_conditional([harmful])
    assert only is not None
    assert not only.holds


def test_where_none_meets_the_earliest_is_offered() -> None:
    missed = [replace(OWN, meets=False), replace(APART, meets=False)]
    choice = choose_conditional(missed)
    assert choice is not None
    assert (choice.candidate, choice.holds) == (missed[1], False)


def test_a_worker_past_its_prefill_share_is_left_alone_while_another_path_holds() -> None:
    past = replace(OWN, within_share=False)
    elsewhere = choose_conditional([past, APART])
    assert elsewhere is not None
    assert elsewhere.candidate == APART
    only = choose_conditional([past, replace(APART, meets=False)])
    assert only is not None
    assert only.candidate == past
