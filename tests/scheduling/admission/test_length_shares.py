"""Short prompts are held back for the sake of longer ones, within limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.learnt import (
    ENOUGH_LENGTHS,
    GATE,
    LENGTHS_AGE_S,
    LENGTHS_WINDOW,
    NEARLY_ALL,
    PARTS,
    LengthShares,
)

BUSY = 0.9
LENGTHS = range(100, 1100, 100)
"""One for each part."""
ASKED = st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=2 * LENGTHS_WINDOW)
"""Prompt lengths, and whether they were admitted."""


def shares_of(*admitted: float, rounds: int = 20) -> LengthShares:
    """Record that so large a share of each length in turn was admitted."""
    shares = LengthShares()
    for turn in range(rounds):
        for tokens, share in zip(LENGTHS, admitted, strict=True):
            shares.decided(tokens, 0.0, admitted=turn < share * rounds)
    return shares


def test_a_short_prompt_is_held_back_by_the_longest_that_starve() -> None:
    shares = shares_of(*[0.9] * 8, 0.1, 0.1)
    assert shares.longer_by(100, BUSY, 1.0) == 1000
    assert shares.longer_by(800, BUSY, 1.0) == 1000


def test_the_starved_are_judged_as_they_are() -> None:
    shares = shares_of(*[0.9] * 8, 0.1, 0.1)
    assert [shares.longer_by(tokens, BUSY, 1.0) for tokens in (900, 1000)] == [0, 0]


def test_who_gets_less_than_the_mean_is_not_held_back_for_others() -> None:
    shares = shares_of(0.3, *[0.9] * 8, 0.1)
    assert shares.longer_by(100, BUSY, 1.0) == 0
    assert shares.longer_by(200, BUSY, 1.0) == 1000


def test_nobody_is_held_back_for_shorter_ones() -> None:
    shares = shares_of(0.1, 0.1, *[0.9] * 8)
    assert [shares.longer_by(tokens, BUSY, 1.0) for tokens in LENGTHS] == [0] * PARTS


def test_equal_shares_hold_nobody_back() -> None:
    shares = shares_of(*[0.5] * 10)
    assert [shares.longer_by(tokens, BUSY, 1.0) for tokens in LENGTHS] == [0] * PARTS


def test_prompts_of_one_length_are_not_held_back_for_each_other() -> None:
    shares = LengthShares()
    for place in range(LENGTHS_WINDOW):
        shares.decided(512, 0.0, admitted=place < LENGTHS_WINDOW // 2)
    assert shares.longer_by(512, BUSY, 1.0) == 0


def test_what_was_refused_long_ago_holds_nobody_back() -> None:
    shares = shares_of(*[0.9] * 8, 0.1, 0.1)
    assert shares.longer_by(100, BUSY, LENGTHS_AGE_S) > 0
    assert shares.longer_by(100, BUSY, LENGTHS_AGE_S + 1) == 0
    assert len(shares) == 0


@given(ASKED, st.integers(1, 60), st.floats(0, GATE, exclude_max=True))
def test_below_the_gate_nobody_is_held_back(asked: list[tuple[int, bool]], tokens: int, load: float) -> None:
    shares = LengthShares()
    for length, admitted in asked:
        shares.decided(length, 0.0, admitted=admitted)
    assert shares.longer_by(tokens, load, 0.0) == 0


@given(
    st.lists(st.integers(1, 50), min_size=ENOUGH_LENGTHS, max_size=LENGTHS_WINDOW),
    st.integers(1, 60),
    st.data(),
)
def test_while_nearly_all_are_admitted_nobody_is_held_back(
    lengths: list[int], tokens: int, data: st.DataObject
) -> None:
    refused = data.draw(st.sets(st.sampled_from(range(len(lengths))), max_size=len(lengths) // 10))
    shares = LengthShares()
    for place, length in enumerate(lengths):
        shares.decided(length, 0.0, admitted=place not in refused)
    assert len(refused) <= (1 - NEARLY_ALL) * len(lengths) + 1e-9
    assert shares.longer_by(tokens, 1.0, 0.0) == 0


@given(ASKED, st.integers(1, 60))
def test_only_longer_ones_that_asked_hold_a_prompt_back(asked: list[tuple[int, bool]], tokens: int) -> None:
    shares = LengthShares()
    for length, admitted in asked:
        shares.decided(length, 0.0, admitted=admitted)
    longer_by = shares.longer_by(tokens, 1.0, 0.0)
    if longer_by:
        latest = asked[-LENGTHS_WINDOW:]
        assert longer_by > tokens
        assert longer_by in {length for length, _ in latest}
        assert not all(admitted for length, admitted in latest if length > tokens)


@given(ASKED, st.lists(st.floats(0, 10), max_size=2 * LENGTHS_WINDOW))
def test_what_is_remembered_is_bounded_and_in_order(
    asked: list[tuple[int, bool]], waits: list[float]
) -> None:
    shares, now, times = LengthShares(), 0.0, []
    for (tokens, admitted), wait in zip(asked, waits, strict=False):
        now += wait
        times.append(now)
        shares.decided(tokens, now, admitted=admitted)
        fresh = [moment for moment in times if now - moment <= LENGTHS_AGE_S]
        assert len(shares) == min(LENGTHS_WINDOW, len(fresh))
