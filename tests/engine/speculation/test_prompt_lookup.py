"""Drafts are what followed the newest run of tokens when it came before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.prompt_lookup import RUN, PromptLookup

TOKENS = st.lists(st.integers(0, 3), max_size=60)


def plainly(tokens: list[int], most: int) -> list[int]:
    """Look at each place from the last one on."""
    newest = tokens[-RUN:]
    for end in range(len(tokens) - 1, RUN - 1, -1):
        if len(tokens) > RUN and tokens[end - RUN : end] == newest:
            seen = tokens[end:]
            while len(seen) < most:
                seen = seen + tokens[end:]
            return seen[:most]
    return []


@given(parts=st.lists(TOKENS, min_size=1, max_size=5), most=st.integers(0, 20))
def test_drafts_are_those_of_a_plain_search(parts: list[list[int]], most: int) -> None:
    """However the tokens come."""
    lookup = PromptLookup(parts[0])
    for part in parts[1:]:
        lookup.extend(part)
    assert lookup.draft(most) == plainly([token for part in parts for token in part], most)


def test_tokens_of_large_vocabularies_are_told_apart() -> None:
    highest = (1 << 21) - 1
    lookup = PromptLookup([highest, 0, highest, 7, highest, 1, highest])
    assert lookup.draft(4) == []
    lookup.extend([highest, 0, highest])
    assert lookup.draft(2) == [7, highest]
