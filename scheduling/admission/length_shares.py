"""Fair shares by prompt length: under overload, refusing what does not fit in time refuses long prompts.

A short prompt still fits where a long one no longer does, and each short one accepted leaves less room for
the next long one. At twice a fleet's capacity, the longest tenth of prompts got next to nothing. Dropping the
largest leaves the most in time (Moore, 1968), so fairness costs requests, and applies only where it is
missing. The lengths of the latest requests are kept, with whether they were admitted. While a tenth of them
by length is starved, a shorter prompt, of a tenth served better than the mean, is judged as if it were longer
by a starved one. It is refused sooner, and leaves the room that the next long prompt needs. Starved prompts,
and those of tenths below the mean, are judged as they are.

Nothing is held back while admitted work is below `GATE` of what the fleet computes, or while `NEARLY_ALL` are
admitted: a fleet that can serve all must not refuse any. Requests that would be late even in an empty fleet
must not be recorded here, since no room would help them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

WINDOW = 256
"""Requests remembered."""
MAX_AGE_S = 60.0
"""Refusals before a quiet minute say nothing about the present."""
ENOUGH = 60
"""Requests needed to compute shares: six in each part."""
PARTS = 10
GATE = 0.4
"""Admitted work per second, as a share of what the fleet computes without pause. Promises of first tokens
leave it idle between prompts: with tight ones, a fleet refuses a third of the requests at 0.6 of its rate."""
NEARLY_ALL, FEWER = 0.9, 0.75
"""Admitted shares of all requests: above the first no part counts as starved, from the second down the limit
for starved parts applies in full."""
STARVED = 0.7
"""A part is starved if its share is below this much of the mean. The aim is half; the limit is higher, since
long prompts do not always use the room that is left for them."""


class LengthShares:
    """The latest prompts by length, and which of them were admitted. Times are seconds.

    The time of a call depends on `WINDOW`, not on the number of requests so far.
    """

    def __init__(self) -> None:
        self._newest: deque[tuple[float, tuple[int, int]]] = deque()
        self._ordered: list[tuple[int, int]] = []
        """(tokens, number of the request), ascending."""
        self._admitted = bytearray()
        """A flag for each entry of `_ordered`."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def decided(self, tokens: int, now: float, *, admitted: bool) -> None:
        """Record the decision on a prompt."""
        self._count += 1
        entry = tokens, self._count
        place = bisect_left(self._ordered, entry)
        self._ordered.insert(place, entry)
        self._admitted.insert(place, admitted)
        self._newest.append((now, entry))
        self._forget(now)

    def longer_by(self, tokens: int, load: float, now: float) -> int:
        """Return the tokens to add to a prompt's length when it is judged; usually 0.

        `load` is the admitted work per second, as a share of what the fleet computes.
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
