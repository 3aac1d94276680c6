"""Fair shares by prompt length: past its capacity, who refuses what does not fit in time refuses the long.

A short prompt still fits where a long one no longer does, and each one taken moves the next long one further
out of reach: of what comes at twice a fleet's capacity, the longest tenth got next to nothing. Dropping the
largest leaves the most in time (Moore, 1968), so fairness costs requests, and is asked for only where it is
missing. Of the latest requests it is kept how long they were and whether they were admitted. While a tenth of
them by length is starved, a shorter prompt, of a tenth served better than the mean, is judged as if it were
longer by one of the starved: it is refused sooner, and leaves the room that a long one needs when it comes.
The starved, and whoever gets less than the mean, are judged as they are.

Nobody is held back where admitted work is below `GATE` of what the fleet computes, nor while `NEARLY_ALL` are
admitted: a fleet that can serve all must not refuse any. And what could not be in time even in an empty fleet
is not to be told of here, since no room left would help it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

WINDOW = 256
"""Requests remembered."""
MAX_AGE_S = 60.0
"""No longer than this: what was refused before a quiet minute says nothing about now."""
ENOUGH = 60
"""Requests from which shares are spoken of: six in each part."""
PARTS = 10
GATE = 0.4
"""Admitted work per second, by what the fleet computes without pause. Promises of first tokens leave it idle
between prompts: where these are tight, a fleet refuses a third of what comes at 0.6 of its rate."""
NEARLY_ALL, FEWER = 0.9, 0.75
"""Shares of all that are admitted: above the first no part is starved, from the second down in earnest."""
STARVED = 0.7
"""A part is starved that gets less than this of the mean. The aim is half: it is reached from above, since
room that is left is not always used by whom it was left for."""


class LengthShares:
    """Who asked of late, by length, and which of them were admitted. Times are seconds.

    Each call takes time in `WINDOW`, however many have asked.
    """

    def __init__(self) -> None:
        self._newest: deque[tuple[float, tuple[int, int]]] = deque()
        self._ordered: list[tuple[int, int]] = []
        """Tokens, and which request it was of all."""
        self._admitted = bytearray()
        """A flag for each, in the same order."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def decided(self, tokens: int, now: float, *, admitted: bool) -> None:
        """A prompt of so many tokens was judged."""
        self._count += 1
        entry = tokens, self._count
        place = bisect_left(self._ordered, entry)
        self._ordered.insert(place, entry)
        self._admitted.insert(place, admitted)
        self._newest.append((now, entry))
        self._forget(now)

    def held_back(self, tokens: int, load: float, now: float) -> int:
        """Tokens that a prompt is to be judged longer by; 0 where it is judged as it is.

        `load` is the admitted work per second, by what the fleet computes.
        """
        self._forget(now)
        count = len(self._ordered)
        if load < GATE or count < ENOUGH:
            return 0
        mean = sum(self._admitted) / count
        earnest = min(1.0, (NEARLY_ALL - mean) / (NEARLY_ALL - FEWER))
        shorter = bisect_right(self._ordered, (tokens, self._count))
        own = max(0, shorter - 1) * PARTS // count
        if earnest <= 0 or self._share(own) <= mean:
            return 0
        for part in range(PARTS - 1, own, -1):
            begin, end = self._bounds(part)
            if self._ordered[begin][0] > tokens and self._share(part) < STARVED * earnest * mean:
                return self._ordered[(begin + end) // 2][0]
        return 0

    def _share(self, part: int) -> float:
        begin, end = self._bounds(part)
        return sum(self._admitted[begin:end]) / (end - begin)

    def _bounds(self, part: int) -> tuple[int, int]:
        count = len(self._ordered)
        return part * count // PARTS, (part + 1) * count // PARTS

    def _forget(self, now: float) -> None:
        while self._newest and (len(self._newest) > WINDOW or now - self._newest[0][0] > MAX_AGE_S):
            _, entry = self._newest.popleft()
            place = bisect_left(self._ordered, entry)
            del self._ordered[place], self._admitted[place]
