"""Where requests are placed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import DecodeCandidate, Handoff, choose_decode_worker, failed_receipts

INFINITE = float("inf")
FREE = DecodeCandidate(
    "d0", draining=False, avoided=False, free_blocks=10, free_seqs=4, step_after_s=0.01,
    tpot_s=INFINITE, held_tpot_s=INFINITE, num_seqs=0, cached_blocks=0,
)  # fmt: skip

candidates = st.builds(
    DecodeCandidate,
    key=st.text("abc", min_size=1, max_size=3),
    draining=st.booleans(),
    avoided=st.booleans(),
    free_blocks=st.integers(0, 20),
    free_seqs=st.integers(-2, 3),
    step_after_s=st.floats(0.001, 0.1),
    tpot_s=st.just(INFINITE) | st.floats(0.001, 0.1),
    held_tpot_s=st.just(INFINITE) | st.floats(0.001, 0.1),
    num_seqs=st.integers(0, 64),
    cached_blocks=st.integers(0, 5),
)


@given(st.lists(candidates, max_size=6, unique_by=lambda one: one.key), st.integers(1, 20))
def test_a_full_or_leaving_worker_is_never_picked(found: list[DecodeCandidate], blocks: int) -> None:
    fitting = {c.key for c in found if not c.draining and c.free_blocks >= blocks and c.free_seqs > 0}
    choice = choose_decode_worker(found, blocks)
    assert (choice is None) == (not fitting)
    assert choice is None or choice.key in fitting


@given(st.lists(candidates, max_size=6, unique_by=lambda one: one.key), st.randoms(use_true_random=False))
def test_pick_does_not_depend_on_the_order_of_the_candidates(
    found: list[DecodeCandidate], draw: object
) -> None:
    shuffled = list(found)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert choose_decode_worker(found, 1) == choose_decode_worker(shuffled, 1)


def test_largest_minimum_slack_wins() -> None:
    tight = replace(FREE, key="tight", held_tpot_s=0.012)
    roomy = replace(FREE, key="roomy", held_tpot_s=0.05)
    choice = choose_decode_worker([tight, roomy], 1)
    assert choice is not None
    assert choice.key == "roomy"


def test_without_promises_requests_spread_whatever_steps_cost() -> None:
    quick = replace(FREE, key="quick", step_after_s=0.001, free_blocks=5)
    slow = replace(FREE, key="slow", step_after_s=0.01, free_blocks=10)
    choice = choose_decode_worker([quick, slow], 1)
    assert choice is not None
    assert choice.key == "slow"


def test_where_an_attempt_failed_is_the_last_resort() -> None:
    failed = replace(FREE, key="failed", avoided=True, step_after_s=0.001)
    choice = choose_decode_worker([failed, FREE], 1)
    assert choice is not None
    assert choice.key == "d0"
    alone = choose_decode_worker([failed], 1)
    assert alone is not None
    assert alone.key == "failed"


def test_held_prefix_decides_among_equals() -> None:
    warm = replace(FREE, key="warm", cached_blocks=3)
    choice = choose_decode_worker([FREE, warm], 1)
    assert choice is not None
    assert choice.key == "warm"


def test_a_link_that_failed_is_avoided_before_its_other_end() -> None:
    failed = (Handoff("p0", "d0"), Handoff("p1", "d1"), Handoff("p2", "d1"))
    assert [failed_receipts(failed, "p0", target) for target in ("d0", "d1", "d2")] == [2, 2, 0]
    assert [failed_receipts(failed, "p1", target) for target in ("d0", "d1", "d2")] == [1, 3, 0]
    found = [
        replace(FREE, key=key, failed_receipts=failed_receipts(failed, "p1", key)) for key in ("d0", "d1")
    ]
    choice = choose_decode_worker(found, 1)
    assert choice is not None
    assert choice.key == "d0"
