"""Stop strings in text that comes in pieces.

Each string is followed through the text by its own Knuth-Morris-Pratt automaton ("Fast Pattern Matching in
Strings", SIAM J. Comput. 6(2), 1977), so a piece costs its length times the number of strings, however much
text came before. Text that might be the beginning of a stop string is held back until that is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopString:
    """A string and its failure function: `borders[k]` is the longest border of its first k characters."""

    text: str
    borders: tuple[int, ...]


def compile_stop_string(text: str) -> StopString:
    if not text:
        raise ValueError("stop_strings holds an empty string; each must have at least one character")
    borders = [0, 0]
    state = 0
    for character in text[1:]:
        while state and text[state] != character:
            state = borders[state]
        state += text[state] == character
        borders.append(state)
    return StopString(text, tuple(borders))


class StopMatcher:
    """Passes text on until the first stop string.

    A stop string counts when it ends in text pushed with `can_stop`. If several first appear with the same
    push, the text ends before the one that begins first, or after it with `include_stop`. Of those that begin
    at the same place the first in `stop_strings` counts.
    """

    def __init__(self, stop_strings: Sequence[StopString], *, include_stop: bool = False) -> None:
        self._stop_strings = stop_strings
        self._include_stop = include_stop
        self._matched = [0] * len(stop_strings)
        self._held = ""

    def push(self, text: str, *, can_stop: bool) -> tuple[str, int | None]:
        """The text that is free to go, and which stop string was found at its end (an index), if any."""
        num_held = len(self._held)
        found = [
            (num_held + begin, place)
            for place in range(len(self._stop_strings))
            if (begin := self._follow(place, text, can_stop)) is not None
        ]
        text = self._held + text
        if found:
            self._held = ""
            begin, place = min(found)
            end = begin + len(self._stop_strings[place].text) if self._include_stop else begin
            return text[:end], place
        # What begins a stop string is shown in any case if the stop string is.
        num_free = len(text) if self._include_stop else len(text) - max(self._matched, default=0)
        self._held = text[num_free:]
        return text[:num_free], None

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held = self._held, ""
        return held

    def _follow(self, place: int, text: str, can_stop: bool) -> int | None:
        """Where the stop string begins, relative to `text` (negative: in what was held), if it ends in it."""
        stop, matched = self._stop_strings[place], self._matched[place]
        pattern, borders = stop.text, stop.borders
        for end, character in enumerate(text, 1):
            while matched and pattern[matched] != character:
                matched = borders[matched]
            matched += pattern[matched] == character
            if matched == len(pattern):
                if can_stop:
                    return end - matched
                matched = borders[matched]
        self._matched[place] = matched
        return None
