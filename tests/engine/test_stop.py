"""Stop strings against a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.stop import StopMatcher, compile_stop_string

# Two letters and short patterns: overlaps and near misses in every example.
PIECES = st.lists(st.text("ab", max_size=3), max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def follow(pieces: list[str], stops: list[str], can_stop_from: int = 0) -> tuple[list[str], bool]:
    matcher = StopMatcher([compile_stop_string(stop) for stop in stops])
    out = []
    for place, piece in enumerate(pieces):
        text, is_stopped = matcher.push(piece, can_stop=place >= can_stop_from)
        out.append(text)
        if is_stopped:
            return out, True
    return [*out, matcher.flush()], False


def search(pieces: list[str], stops: list[str], can_stop_from: int = 0) -> tuple[str, int | None]:
    """The dumb reference: after each piece, look at the whole text again."""
    text = ""
    for place, piece in enumerate(pieces):
        before, text = len(text), text + piece
        begins = [
            begin
            for stop in stops
            for begin in range(len(text))
            if text.startswith(stop, begin) and begin + len(stop) > before
        ]
        if begins and place >= can_stop_from:
            return text[: min(begins)], place
    return text, None


@settings(max_examples=500)
@given(PIECES, STOPS, st.integers(0, 6))
def test_the_text_ends_where_a_search_in_all_of_it_says(
    pieces: list[str], stops: list[str], can_stop_from: int
) -> None:
    out, is_stopped = follow(pieces, stops, can_stop_from)
    text, place = search(pieces, stops, can_stop_from)
    assert "".join(out) == text
    assert is_stopped == (place is not None)
    if place is not None:
        assert len(out) == place + 1


@given(PIECES, STOPS)
def test_no_more_is_held_back_than_might_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    out, is_stopped = follow(pieces, stops)
    if is_stopped:
        return
    for count in range(len(pieces)):
        text, shown = "".join(pieces[: count + 1]), "".join(out[: count + 1])
        held = text[len(shown) :]
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


def test_a_stop_string_is_found_across_pieces() -> None:
    assert follow(["Hel", "lo ST", "O", "P now"], ["STOP"]) == (["Hel", "lo ", "", ""], True)


def test_a_near_miss_is_given_back() -> None:
    assert follow(["a S", "TO", "RY"], ["STOP"]) == (["a ", "", "STORY", ""], False)


def test_held_text_comes_out_at_the_end() -> None:
    assert follow(["a ST"], ["STOP"]) == (["a ", "ST"], False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        compile_stop_string("")
