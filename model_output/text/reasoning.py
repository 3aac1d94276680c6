"""Find where the reasoning at the beginning of an output ends, so that stop strings in it do not count.

Text arrives in pieces, and each is looked at once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class _Place(enum.Enum):
    BEGINNING = "beginning"
    """Nothing but white space came, and perhaps the beginning of an opening marker."""
    INSIDE = "inside"
    BEHIND = "behind"
    """Reasoning is over; the white space that follows it belongs to the format."""


class ReasoningEnd:
    """Tells reasoning from what follows it. Use it until `is_over`."""

    def __init__(self, opens: Sequence[str], closes: Sequence[str]) -> None:
        """Without `opens`, the prompt has opened the reasoning."""
        self._opens = opens
        self._closes = closes
        self._num_tail = max(map(len, closes)) - 1
        self._place = _Place.BEGINNING if opens else _Place.INSIDE
        self._space: list[str] = []
        self._begun = ""
        self._tail = ""
        self.is_over = False
        """All text from here on is the answer's."""

    def push(self, text: str) -> tuple[str, str]:
        """Return the text that is reasoning, or its markers, and then that of the answer.

        Both are empty while it is not known whether the output begins with reasoning.
        """
        if self._place is _Place.BEGINNING:
            text = self._begin(text)
            if self.is_over:
                return "", text
        thought = ""
        if self._place is _Place.INSIDE:
            thought, text = self._inside(text)
        if self._place is _Place.BEHIND:
            answer = text.lstrip()
            thought += text[: len(text) - len(answer)]
            self.is_over = bool(answer)
            return thought, answer
        return thought, ""

    def flush(self) -> str:
        """Return the text that was held back, which is the answer's, when no more will come."""
        rest = "".join([*self._space, self._begun])
        self._space, self._begun = [], ""
        return rest

    def _begin(self, text: str) -> str:
        """Return all text so far once it shows what the output begins with; else hold it back."""
        if not self._begun:
            content = text.lstrip()
            self._space.append(text[: len(text) - len(content)])
            text = content
        self._begun += text
        if any(map(self._begun.startswith, self._opens)):
            self._place = _Place.INSIDE
        elif any(marker.startswith(self._begun) for marker in self._opens):
            return ""
        else:
            self.is_over = True
        return self.flush()

    def _inside(self, text: str) -> tuple[str, str]:
        whole = self._tail + text
        ends = [(at, at + len(marker)) for marker in self._closes if (at := whole.find(marker)) >= 0]
        if not ends:
            self._tail = whole[-self._num_tail :] if self._num_tail else ""
            return text, ""
        self._place = _Place.BEHIND
        answer = whole[min(ends)[1] :]
        return text[: len(text) - len(answer)], answer
