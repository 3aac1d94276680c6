"""Fair shares of classes and of prompt lengths; those of tenants are in `shares`.

Classes: a lower class may use only what higher ones leave of the fleet's rate.

Higher classes go first in the queue, but a worker finishes the prompt that it has begun, and batch prompts
are long. A fleet kept busy by batch work makes every interactive request wait for such a prompt, and refuses
it for that wait. Batch requests have the most time and are refused last, so they would crowd out all others.

The work admitted per second for a class may be at most

    max(BATCH_SHARE, 1 - HEADROOM · demand of higher classes / rate) · rate

The demand is what higher classes asked for, not what was admitted, since crowded-out requests are not
admitted. If the demand is low, or all classes together ask for less than the rate, nothing is taken away.

Prompt lengths: under overload, refusing what does not fit in time refuses long prompts.

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

import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

from scheduling.request import SloClass

LOAD_WINDOW_S = 10.0
HEADROOM = 2.2
"""Room kept free for higher classes, per unit of their demand: a request with the promise of an early first
token must seldom find all workers busy."""
BATCH_SHARE = 0.05
"""The share of prefill tokens that batch always gets, whatever else waits: its floor.

`ClassShares` admits at least as much, `BatchFloor` gives it in the queue, and `shedding.plan` counts on it.
"""


@dataclass(slots=True)
class AdmittedLoad:
    """Work per second, averaged over the last ten seconds with exponential forgetting."""

    tokens_per_s: float = 0.0
    at: float = 0.0

    def add(self, tokens: int, now: float) -> None:
        """Count work that came now."""
        self.tokens_per_s = self.rate(now) + tokens / LOAD_WINDOW_S
        self.at = now

    def rate(self, now: float) -> float:
        """Return the recent tokens per second."""
        return self.tokens_per_s * math.exp(-max(0.0, now - self.at) / LOAD_WINDOW_S)


class ClassShares:
    """Each class's recent demand, and how much of it was admitted, in tokens and seconds."""

    def __init__(self) -> None:
        self._asked = {slo_class: AdmittedLoad() for slo_class in SloClass}
        self._admitted = {slo_class: AdmittedLoad() for slo_class in SloClass}

    def asked(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """Count a request that came, whatever is decided about it."""
        self._asked[slo_class].add(tokens, now)

    def admitted(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """Count a request that was admitted."""
        self._admitted[slo_class].add(tokens, now)

    def admitted_until(self, slo_class: SloClass, now: float) -> float:
        """Return the tokens per second admitted of a class and of all higher ones."""
        return sum(load.rate(now) for key, load in self._admitted.items() if key <= slo_class)

    def left_to(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Return the tokens per second that higher classes leave of a fleet's rate."""
        asked = sum(load.rate(now) for key, load in self._asked.items() if key < slo_class)
        return max(BATCH_SHARE * rate, rate - HEADROOM * asked)

    def wait_s(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Return the seconds until the class has no more than its share, if none of it is admitted meanwhile.

        Return 0 if it has no more now, or if no higher class asks for anything.
        """
        left = self.left_to(slo_class, rate, now)
        admitted = self._admitted[slo_class].rate(now)
        if left >= rate or admitted <= left:
            return 0.0
        return LOAD_WINDOW_S * math.log(admitted / left)


class BatchFloor:
    """Guards batch's share: while batch waits, every other token computed owes it a little."""

    def __init__(self) -> None:
        self.owed_tokens = 0.0

    def dispatched(self, slo_class: SloClass, tokens: int, *, batch_waits: bool) -> None:
        """Count tokens sent to a worker. Batch saves up nothing while it does not wait."""
        if slo_class is SloClass.BATCH:
            self.owed_tokens = max(0.0, self.owed_tokens - tokens)
        elif batch_waits:
            self.owed_tokens += tokens * BATCH_SHARE / (1 - BATCH_SHARE)
        else:
            self.owed_tokens = 0.0


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
