"""Drafted tokens are accepted as far as they are the ones that are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.execution.drafting import num_accepted

DRAFTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6)


@given(DRAFTS)
def test_a_draft_is_accepted_up_to_the_first_other_token(pairs: list[tuple[int, int]]) -> None:
    draft, drawn = [token for token, _ in pairs], [*(token for _, token in pairs), 7]
    num = num_accepted(draft, drawn, [False] * len(drawn))
    assert draft[:num] == drawn[:num]
    assert draft[num : num + 1] != drawn[num : num + 1]


def test_no_draft_is_accepted_in_front_of_a_row_without_tokens() -> None:
    assert num_accepted([1, 2, 3], [1, 2, 3, 4], [False, False, True, False]) == 1
