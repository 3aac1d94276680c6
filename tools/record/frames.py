"""The screens that a recording shows, and for how long: pauses are cut, and quick changes are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tools.record.screen import BLANK, Row, Screen
from tools.record.session import Piece


@dataclass(frozen=True, slots=True)
class Frame:
    rows: tuple[Row, ...]
    duration_s: float


def frames(pieces: Iterable[Piece], screen: Screen, *, least_s: float, pause_s: float) -> list[Frame]:
    """Return the screens one after another, none shorter than `least_s`.

    Where nothing but a spinner moves for more than `pause_s`, the rest of that time is cut. The last frame
    lasts no time.
    """
    screens: list[Frame] = []
    since_s = 0.0
    for piece in pieces:
        if piece.at_s - since_s >= least_s:
            screens.append(Frame(screen.rows(), piece.at_s - since_s))
            since_s = piece.at_s
        screen.write(piece.text)
    last = Frame(screen.rows(), 0.0)
    groups = (list(group) for _, group in groupby(screens, key=lambda frame: _without_spinner(frame.rows)))
    return [*(frame for group in groups for frame in _cut(group, pause_s)), last]


def _without_spinner(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the screen with blanks for the Braille patterns that spinners are made of."""
    return tuple(tuple(BLANK if "\u2800" <= cell.char <= "\u28ff" else cell for cell in row) for row in rows)


def _cut(alike: Sequence[Frame], pause_s: float) -> Iterator[Frame]:
    """Yield the first frames of a pause, up to its longest time."""
    left_s = pause_s
    for frame in alike:
        if left_s <= 0:
            return
        yield Frame(frame.rows, min(frame.duration_s, left_s))
        left_s -= frame.duration_s
