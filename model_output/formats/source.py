"""Text that arrives in pieces, for readers that are generators: they yield whenever they need more.

A reader never looks at a character twice, except for the few that may begin a marker, so that the cost of a
text does not depend on how it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]
"""A reader that returns a `T`."""

_SPACE = re.compile(r"\s*")


class Source:
    """The text that was not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._cut_before: str | None = None
        self.has_dropped = False
        """Whether the end of the text was left out, since it may begin a marker."""
        self._kept: list[str] | None = None
        self._kept_from = 0

    def feed(self, text: str) -> None:
        """Add text."""
        self._save()
        self._text = self._text[self._at :] + text
        self._at = self._kept_from = 0

    def end(self, cut_before: str | None = None) -> None:
        """Say that nothing more will be added; `cut_before` as for `OutputParser.finish`."""
        self._ended = True
        self._cut_before = cut_before

    @property
    def is_cut(self) -> bool:
        """Whether the text has ended, and was cut off. What was not certain before is half of something."""
        return self._cut_before is not None

    def drop(self) -> None:
        """Leave out what was not read yet."""
        self._text = self._text[: self._at]
        self.has_dropped = True

    def keep(self, before: str = "") -> None:
        """From here on, keep what is read, after `before`, since it may turn out to be content."""
        self._kept = [before]
        self._kept_from = self._at

    def kept(self) -> str:
        """Return what was read since `keep`."""
        self._save()
        text = "".join(self._kept or ())
        self._kept = None
        return text

    def give_back(self, text: str) -> None:
        """Read again `text`, which was read last."""
        self._text = text + self._text[self._at :]
        self._at = 0

    def _save(self) -> None:
        if self._kept is not None:
            self._kept.append(self._text[self._kept_from : self._at])
            self._kept_from = self._at

    def peek(self) -> Reader[str]:
        """Return the next character without reading it, or nothing at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def skip(self) -> None:
        """Read the character that was peeked at."""
        self._at += 1

    def run(self, pattern: re.Pattern[str], emit: Callable[[str], None]) -> Reader[None]:
        """Read characters as long as they match `pattern`, a repeated class of characters."""
        while (yield from self.peek()):
            match = pattern.match(self._text, self._at)
            if match is None or match.end() == self._at:
                return
            emit(match.group())
            self._at = match.end()

    def skip_space(self) -> Reader[None]:
        return self.run(_SPACE, _ignore)

    def take(self, literal: str) -> Reader[bool]:
        """Read `literal` if it comes next; otherwise read nothing."""
        while True:
            if self._text.startswith(literal, self._at):
                self._at += len(literal)
                return True
            if self._ended or not literal.startswith(self._text[self._at :]):
                return False
            yield

    def take_one(self, literals: Sequence[str]) -> Reader[str]:
        """Read the first of `literals` that comes next and return it; nothing if none does."""
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        if self._ended:
            self._drop_from(self._at, Markers(literals))
        return ""

    def until(self, markers: Markers, emit: Callable[[str], None]) -> Reader[str]:
        """Read text up to a marker, and the marker, which is returned; nothing at the end.

        Only the beginning of a marker at the end of the text waits for more.
        """
        while True:
            match = markers.pattern.search(self._text, self._at)
            if match is not None and (self._ended or not markers.may_grow(self._text, match)):
                emit(self._text[self._at : match.start()])
                self._at = match.end()
                return match.group()
            if self._ended:
                self._drop_from(self._at, markers)
                emit(self._text[self._at :])
                self._at = len(self._text)
                return ""
            end = markers.safe_end(self._text, self._at)
            emit(self._text[self._at : end])
            self._at = end
            yield

    def _drop_from(self, start: int, markers: Markers) -> None:
        """Leave out what the text was cut off in, if that may be the beginning of a marker."""
        if self._cut_before is not None:
            at = markers.begun_at(self._text, start, self._cut_before)
            if at < len(self._text):
                self._text, self.has_dropped = self._text[:at], True


class Markers:
    """Texts to look for."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        ordered = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._prefixes = {text[:length] for text in texts for length in range(1, len(text))}
        self._firsts = "".join({text[0] for text in texts})
        self._longest = max(map(len, texts), default=1) - 1

    def may_grow(self, text: str, match: re.Match[str]) -> bool:
        """Return whether a longer marker may still come to be where one was found."""
        return match.end() == len(text) and match.group() in self._prefixes

    def safe_end(self, text: str, start: int) -> int:
        """Return where the beginning of a marker may be at the end of `text`, or its end."""
        for at in range(max(start, len(text) - self._longest), len(text)):
            if text[at] in self._firsts and text[at:] in self._prefixes:
                return at
        return len(text)

    def begun_at(self, text: str, start: int, ahead: str) -> int:
        """Return where `text`, which `ahead` would follow, ends in the beginning of a marker, or its end.

        Markers that are words do not count: a text may as well have begun a sentence.
        """
        for at in range(max(start, len(text) - self._longest), len(text)):
            tail = text[at:]
            if any(
                len(tail) < len(marker)
                and not marker[0].isalpha()
                and marker.startswith((tail + ahead)[: len(marker)])
                for marker in self._texts
            ):
                return at
        return len(text)


def _ignore(_: str) -> None:
    """Take text that means nothing."""
