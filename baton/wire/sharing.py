"""Which call a generation gets: one of its own, or one that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharing:
    """When generations share calls, and how many share one."""

    num_alone: int
    """So many at once have calls of their own before one shares a call."""
    most: int
    """With this many on each open shared call, the next generation opens another one."""

    def place(self, num_alone: int, loads: Sequence[int]) -> int | None:
        """Return the shared call that a generation goes to, as its place in `loads`; None for one of its own.

        `num_alone` is how many have calls of their own now, and `loads` how many are on each shared call that
        takes new ones. A place behind the last one, `len(loads)`, is a call to be opened. Among calls with
        room the one with the fewest is chosen: a proxy may have spread them over routers.
        """
        if num_alone < self.num_alone:
            return None
        place = min(range(len(loads)), key=loads.__getitem__, default=0)
        return place if place < len(loads) and loads[place] < self.most else len(loads)


ALWAYS = Sharing(num_alone=0, most=256)
"""For a program that always has many generations, such as a gateway. Routers accept more on each call."""
BEYOND_FEW = Sharing(num_alone=8, most=64)
"""Few streams are as if no calls were shared, and a proxy that spreads calls over routers spreads them. So it
does with the shared calls that many streams need.
"""
