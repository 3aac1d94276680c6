"""The most blocks a request can hold, recounted token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.memory.room import LengthQuantiles, peak_blocks, spread
from scheduling.prediction import blocks_needed


@given(st.integers(1, 80), st.integers(1, 60), st.integers(1, 16), st.integers(1, 33))
def test_it_is_what_the_choices_touch(prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> None:
    touched = set()
    for choice in range(n):
        for position in range(prompt_tokens + max_tokens - 1):
            block = position // block_size
            is_shared = (block + 1) * block_size <= prompt_tokens
            touched.add((None if is_shared else choice, block))
    assert blocks_needed(prompt_tokens, max_tokens, n, block_size) == len(touched)


@given(st.integers(1, 80), st.integers(2, 60), st.integers(1, 33), st.data())
def test_a_resumed_choice_needs_what_it_needed_before(
    prompt_tokens: int, max_tokens: int, block_size: int, data: st.DataObject
) -> None:
    delivered = data.draw(st.integers(1, max_tokens - 1))
    moved = blocks_needed(prompt_tokens + delivered, max_tokens - delivered, 1, block_size)
    assert moved == blocks_needed(prompt_tokens, max_tokens, 1, block_size)


@pytest.mark.parametrize("wrong", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_nothing_below_one_is_accepted(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        blocks_needed(*wrong)


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(0, 310), st.integers(1, 400), st.floats(0, 1))
def test_what_remains_is_a_quantile_of_the_outputs_that_were_longer(
    lengths: list[int], so_far: int, more: int, share: float
) -> None:
    learnt = LengthQuantiles(window=50)
    for length in lengths:
        learnt.observe(length)
    longer = [length for length in lengths[-50:] if length > so_far]
    remaining = learnt.remaining(so_far, so_far + more, share)
    assert 1 <= remaining <= more
    if len(longer) < LengthQuantiles.MIN_EXAMPLES:
        assert remaining == more
    elif remaining < more:
        within = sum(length - so_far <= remaining for length in longer)
        assert within >= share * len(longer) or remaining == max(longer) - so_far
        assert sum(length - so_far < remaining for length in longer) <= share * len(longer)


def test_a_choice_beyond_its_limit_is_expected_to_end() -> None:
    assert LengthQuantiles().remaining(9, 9, 0.5) == 1


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window is 0; accepted: at least 1"):
        LengthQuantiles(window=0)


@given(st.integers(0, 10_000), st.integers(20, 300))
def test_any_run_of_indexes_covers_all_shares_evenly(begin: int, count: int) -> None:
    shares = [spread(index) for index in range(begin, begin + count)]
    for tenth in range(10):
        inside = sum(tenth / 10 <= share < (tenth + 1) / 10 for share in shares)
        assert abs(inside - count / 10) <= 3


SEQUENCES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 200)), max_size=12)


@given(SEQUENCES, st.integers(1, 33))
def test_the_peak_is_that_of_everybody_growing_until_each_ends(
    sequences: list[tuple[int, int]], block_size: int
) -> None:
    """Replayed token by token; on top comes a deviation that is never negative nor above the whole growth."""
    last = max((remaining for _, remaining in sequences), default=0)
    replayed = max(
        (
            sum(blocks + step / block_size for blocks, remaining in sequences if remaining >= step)
            for step in range(1, last + 1)
        ),
        default=0.0,
    )
    grown = sum(remaining for _, remaining in sequences) / block_size
    assert replayed - 1e-6 <= peak_blocks(sequences, block_size) <= replayed + grown + 1


@given(SEQUENCES, st.tuples(st.integers(0, 60), st.integers(1, 200)), st.integers(1, 33))
def test_one_more_sequence_never_needs_less(
    sequences: list[tuple[int, int]], more: tuple[int, int], block_size: int
) -> None:
    assert peak_blocks([*sequences, more], block_size) >= peak_blocks(sequences, block_size)
