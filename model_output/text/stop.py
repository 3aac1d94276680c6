"""Find stop strings in text that arrives in pieces.

Each string has its own Knuth-Morris-Pratt automaton ("Fast Pattern Matching in Strings", SIAM J. Comput.
6(2), 1977), so a piece costs its length times the number of strings, however much text came before. Text that
may be the beginning of a stop string is held back until that is decided.

An automaton is built only as far as text has matched its string, so a long stop string costs nothing until
the model writes its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopString:
    """A string and its failure function."""

    __slots__ = ("_borders", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("stop_strings contains an empty string; accepted: at least one character each")
        self.text = text
        self._borders = [0, 0]

    def border(self, length: int) -> int:
        """Return the longest border of the first `length` characters."""
        text, borders = self.text, self._borders
        while len(borders) <= length:
            character, state = text[len(borders) - 1], borders[-1]
            while state and text[state] != character:
                state = borders[state]
            borders.append(state + (text[state] == character))
        return borders[length]


class StopMatcher:
    """Passes text on until the first stop string.

    A stop string counts if it ends in text pushed with `can_stop`. If one push completes several, the text
    ends before the one that begins first, or after it with `include_stop`. If several begin at the same
    place, the first in `stop_strings` counts.
    """

    def __init__(self, stop_strings: Sequence[StopString], *, include_stop: bool = False) -> None:
        self._stop_strings = stop_strings
        self._include_stop = include_stop
        self._matched = [0] * len(stop_strings)
        self._held = ""

    def push(self, text: str, *, can_stop: bool) -> tuple[str, int | None]:
        """Return the text that may be sent, and the index of the stop string found at its end, if any."""
        num_held = len(self._held)
        matches = [
            (num_held + begin, place)
            for place in range(len(self._stop_strings))
            if (begin := self._follow(place, text, can_stop)) is not None
        ]
        text = self._held + text
        if matches:
            self._held = ""
            begin, place = min(matches)
            end = begin + len(self._stop_strings[place].text) if self._include_stop else begin
            return text[:end], place
        # If stop strings are shown, so are their beginnings: nothing needs to be held back.
        num_free = len(text) if self._include_stop else len(text) - max(self._matched, default=0)
        self._held = text[num_free:]
        return text[:num_free], None

    def flush(self) -> str:
        """Return the text that was held back, when no more will come."""
        rest, self._held = self._held, ""
        return rest

    def _follow(self, place: int, text: str, can_stop: bool) -> int | None:
        """Return where a stop string that ends in `text` begins; negative if it begins in the held text."""
        stop, matched = self._stop_strings[place], self._matched[place]
        pattern = stop.text
        for end, character in enumerate(text, 1):
            while matched and pattern[matched] != character:
                matched = stop.border(matched)
            matched += pattern[matched] == character
            if matched == len(pattern):
                if can_stop:
                    return end - matched
                matched = stop.border(matched)
        self._matched[place] = matched
        return None
