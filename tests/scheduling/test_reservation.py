"""The most blocks a request can hold, recounted token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.reservation import blocks_needed


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
