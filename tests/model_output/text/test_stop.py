"""Stop strings against a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_output.text.stop import StopMatcher, StopString

# Two letters and short patterns: overlaps and near misses in every example.
PIECES = st.lists(st.text("ab", max_size=3), max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def follow(
    pieces: list[str], stops: list[str], can_stop_from: int = 0, *, include_stop: bool = False
) -> tuple[list[str], int | None]:
    matcher = StopMatcher([StopString(stop) for stop in stops], include_stop=include_stop)
    out = []
    for place, piece in enumerate(pieces):
        text, stopped_by = matcher.push(piece, can_stop=place >= can_stop_from)
        out.append(text)
        if stopped_by is not None:
            return out, stopped_by
    return [*out, matcher.flush()], None


def search(
    pieces: list[str], stops: list[str], can_stop_from: int = 0, *, include_stop: bool = False
) -> tuple[str, int | None, int]:
    """The dumb reference: after each piece, look at the whole text again.

    Returns the text, the stop string and how many pieces it took.
    """
    text = ""
    for place, piece in enumerate(pieces):
        before, text = len(text), text + piece
        begins = [
            (begin, which)
            for which, stop in enumerate(stops)
            for begin in range(len(text))
            if text.startswith(stop, begin) and begin + len(stop) > before
        ]
        if begins and place >= can_stop_from:
            begin, which = min(begins)
            return text[: begin + len(stops[which]) * include_stop], which, place + 1
    return text, None, len(pieces)


@settings(max_examples=500)
@given(PIECES, STOPS, st.integers(0, 6), st.booleans())
def test_the_text_ends_where_a_search_in_all_of_it_says(
    pieces: list[str], stops: list[str], can_stop_from: int, include_stop: bool
) -> None:
    out, stopped_by = follow(pieces, stops, can_stop_from, include_stop=include_stop)
    text, expected, num_pieces = search(pieces, stops, can_stop_from, include_stop=include_stop)
    assert "".join(out) == text
    assert stopped_by == expected
    if stopped_by is not None:
        assert len(out) == num_pieces


@given(PIECES, STOPS)
def test_text_that_ends_with_the_stop_string_is_never_held_back(pieces: list[str], stops: list[str]) -> None:
    out, stopped_by = follow(pieces, stops, include_stop=True)
    if stopped_by is None:
        assert out == [*pieces, ""]
    else:
        assert out[:-1] == pieces[: len(out) - 1]
        assert "".join(out).endswith(stops[stopped_by])


@given(PIECES, STOPS)
def test_no_more_is_held_back_than_might_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    out, stopped_by = follow(pieces, stops)
    if stopped_by is not None:
        return
    for count in range(len(pieces)):
        text, shown = "".join(pieces[: count + 1]), "".join(out[: count + 1])
        held = text[len(shown) :]
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


def test_a_stop_string_is_found_across_pieces() -> None:
    assert follow(["Hel", "lo ST", "O", "P now"], ["STOP"]) == (["Hel", "lo ", "", ""], 0)


def test_a_near_miss_is_given_back() -> None:
    assert follow(["a S", "TO", "RY"], ["STOP"]) == (["a ", "", "STORY", ""], None)


def test_held_text_comes_out_at_the_end() -> None:
    assert follow(["a ST"], ["STOP"]) == (["a ", "ST"], None)


def test_a_long_string_costs_no_more_than_the_text_that_matched_it() -> None:
    stops = [StopString("ab" * 120_000 + "c") for _ in range(16)]
    matcher = StopMatcher(stops)
    for _ in range(1000):
        matcher.push("the ab, ", can_stop=True)
    assert max(len(stop._borders) - 1 for stop in stops) <= len("ab")
    matcher.push("ab" * 10 + "d", can_stop=True)
    assert max(len(stop._borders) - 1 for stop in stops) <= 20


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopString("")
