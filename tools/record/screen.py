"""The screen that output leaves: the part of a terminal that progress bars and live tables need.

Understands line feeds, carriage returns, cursor movements, erasing and colours. Other control sequences are
ignored. Characters are taken to be one column wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<act>[A-Za-z])|\x1b\][^\x07]*\x07|\x1b.|(?P<char>[^\x1b])", re.DOTALL
)
LOOKS: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    2: {"dim": True},
    22: {"bold": False, "dim": False},
    39: {"colour": None},
    **{30 + colour: {"colour": colour} for colour in range(8)},
    **{90 + colour: {"colour": 8 + colour} for colour in range(8)},
}
"""The changes that the numbers of a colour sequence make."""

UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*|\][^\x07]*)?$")


@dataclass(frozen=True, slots=True)
class Style:
    """How a character looks; a colour is a number of the terminal's palette, or None for its default."""

    colour: int | None = None
    bold: bool = False
    dim: bool = False


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Cell:
    char: str = " "
    style: Style = PLAIN


BLANK = Cell()
Row = tuple[Cell, ...]
"""A row of the screen, without the blanks at its end."""


class Screen:
    """The cells of a terminal, and where the next character goes."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._num_rows = columns, rows
        self._rows: list[list[Cell]] = [self._blank_row() for _ in range(rows)]
        self._row = self._column = 0
        self._style = PLAIN
        self._unfinished = ""

    def rows(self) -> tuple[Row, ...]:
        return tuple(_trimmed(row) for row in self._rows)

    def write(self, text: str) -> None:
        """Take in output; a control sequence may come in pieces."""
        text = self._unfinished + text
        cut = UNFINISHED.search(text)
        self._unfinished = cut[0] if cut else ""
        for token in TOKEN.finditer(text[: cut.start() if cut else len(text)]):
            if token["char"] is not None:
                self._put(token["char"])
            elif token["act"] is not None:
                self._act(token["act"], token["args"])

    def _put(self, char: str) -> None:
        match char:
            case "\n":
                self._next_row()
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(0, self._column - 1)
            case _ if char >= " ":
                if self._column == self._columns:
                    self._column = 0
                    self._next_row()
                self._rows[self._row][self._column] = Cell(char, self._style)
                self._column += 1

    def _next_row(self) -> None:
        """Go down, and scroll at the end of the screen."""
        if self._row + 1 < self._num_rows:
            self._row += 1
        else:
            self._rows = [*self._rows[1:], self._blank_row()]

    def _act(self, act: str, args: str) -> None:
        numbers = [int(arg) for arg in args.split(";") if arg.isdigit()]
        count = max(1, numbers[0]) if numbers else 1
        match act:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self._num_rows - 1, self._row + count)
            case "C":
                self._column = min(self._columns - 1, self._column + count)
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = min(self._columns, count) - 1
            case "H":
                self._row = min(self._num_rows, count) - 1
                self._column = min(self._columns, numbers[1] if len(numbers) > 1 else 1) - 1
            case "J" | "K":
                self._erase(numbers[0] if numbers else 0, whole_screen=act == "J")
            case "m":
                self._style = _styled(self._style, numbers or [0])

    def _erase(self, which: int, *, whole_screen: bool) -> None:
        """Erase from the cursor on (0), up to it (1), or all (2), of the row or of the screen."""
        row = self._rows[self._row]
        first = 0 if which else self._column
        last = self._column + 1 if which == 1 else self._columns
        row[first:last] = [BLANK] * (min(last, self._columns) - first)
        if whole_screen:
            others = (
                range(self._num_rows)
                if which == 2
                else range(self._row)
                if which
                else range(self._row + 1, self._num_rows)
            )
            for other in others:
                self._rows[other] = self._blank_row()

    def _blank_row(self) -> list[Cell]:
        return [BLANK] * self._columns


def _trimmed(row: list[Cell]) -> Row:
    length = len(row)
    while length and row[length - 1].char == " ":
        length -= 1
    return tuple(row[:length])


def _styled(style: Style, numbers: list[int]) -> Style:
    """Return the style after a sequence of SGR numbers."""
    rest = iter(numbers)
    for number in rest:
        style = _with(style, number, rest)
    return style


def _with(style: Style, number: int, rest: Iterator[int]) -> Style:
    if number == 0:
        return PLAIN
    if number == 38:
        kind, colour = next(rest, None), next(rest, None)
        return replace(style, colour=colour) if kind == 5 else style
    return replace(style, **LOOKS.get(number, {}))
