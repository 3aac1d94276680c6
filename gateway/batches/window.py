"""How many lines of batches run at once on this gateway: as many as the fleet has to spare.

The window grows while lines run without waiting, and shrinks when the fleet refuses one or lets one wait: by
the rule of TCP, one step up for a window of lines, and by half down, once for the lines that ran together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import Enum, auto

WAITED_MS = 250.0
"""A line that waited longer in the fleet's queue found no room. Tokenising and admission take less."""


class Outcome(Enum):
    """The room that a line found in the fleet."""

    ROOM = auto()
    WAITED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Size:
    """The window's size, and how often it has shrunk: a line that began before does not shrink it again."""

    lines: float
    most: int
    shrinks: int = 0


def after(size: Size, outcome: Outcome, shrinks_at_begin: int) -> Size:
    """Return the size after a line that began when the window had shrunk so often."""
    if outcome is Outcome.ROOM:
        step = 1.0 if size.shrinks == 0 else 1.0 / size.lines
        return replace(size, lines=min(size.lines + step, float(size.most)))
    if shrinks_at_begin < size.shrinks:
        return size
    factor = 0.5 if outcome is Outcome.REFUSED else 0.75
    return replace(size, lines=max(1.0, size.lines * factor), shrinks=size.shrinks + 1)


class Window:
    """Lets lines begin, in the order in which they came. Each line that has entered must leave."""

    def __init__(self, most: int) -> None:
        self.size = Size(min(2.0, most), most)
        self.running = 0
        self._changed = asyncio.Event()

    async def enter(self) -> int:
        """Wait for room; return what `leave` needs."""
        while self.running >= int(self.size.lines):
            self._changed.clear()
            await self._changed.wait()
        self.running += 1
        return self.size.shrinks

    def leave(self, entered: int, outcome: Outcome | None) -> None:
        """Make room; `outcome` is None if the reply says nothing about room."""
        self.running -= 1
        if outcome is not None:
            self.size = after(self.size, outcome, entered)
        self._changed.set()
