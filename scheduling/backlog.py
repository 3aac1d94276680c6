"""What waits, by class and due time, in buckets: an arrival is judged by walking buckets, not requests.

A bucket is as wide as a due time may be off without harm: a part of the time there is until then. So a class
has some hundreds of them at most, however many requests wait. Sums are kept as requests come and go and are
never negative.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from dataclasses import dataclass, field

from scheduling.request import SloClass
from scheduling.value import value

LEAST_WIDTH_S = 0.05
WIDTH_SHARE = 1 / 32
"""Width of a bucket as a share of the time until it is due, when it is made."""


class Stake(enum.Enum):
    """What was said to one that waits."""

    NONE = "none"
    """It asked for no first token by any time: never late, never let go."""
    AT_RISK = "at_risk"
    ACCEPTED = "accepted"


@value
class Waiting:
    """One that waits and was not started. Times are seconds on the caller's clock."""

    key: str
    slo_class: SloClass
    due_at: float
    """By which it is ordered, promised or not."""
    tokens: int
    """Prompt tokens to compute."""
    stake: Stake


@dataclass(slots=True)
class _Bucket:
    """Those due from `begin` until before `end`."""

    begin: float
    end: float
    tokens: int = 0
    requests: int = 0
    promised: int = 0
    first_due_at: float = 0.0
    last_due_at: float = 0.0
    """Of the promised ones there have been since it last held none."""

    def promise(self, due_at: float) -> None:
        if self.promised == 0:
            self.first_due_at = self.last_due_at = due_at
        self.promised += 1
        self.first_due_at = min(self.first_due_at, due_at)
        self.last_due_at = max(self.last_due_at, due_at)


@dataclass(slots=True)
class _Class:
    """Buckets in order, none empty, none overlapping."""

    tokens: int = 0
    requests: int = 0
    begins: list[float] = field(default_factory=list)
    buckets: list[_Bucket] = field(default_factory=list)

    def place(self, due_at: float) -> int | None:
        """Where the bucket is that holds this due time; None where there is none."""
        place = bisect_right(self.begins, due_at) - 1
        return place if place >= 0 and due_at < self.buckets[place].end else None

    def make(self, due_at: float, now: float) -> int:
        """A new bucket around a due time, in the gap that is left between its neighbours."""
        place = bisect_right(self.begins, due_at)
        width = max(LEAST_WIDTH_S, (due_at - now) * WIDTH_SHARE)
        begin = math.floor(due_at / width) * width
        begin = min(begin, due_at)  # the quotient may have been rounded up
        end = max(begin + width, math.nextafter(due_at, math.inf))
        if place > 0:
            begin = max(begin, self.buckets[place - 1].end)
        if place < len(self.begins):
            end = min(end, self.begins[place])
        self.begins.insert(place, begin)
        self.buckets.insert(place, _Bucket(begin, end))
        return place


@value
class Pace:
    """How fast what waits is worked off."""

    now: float
    start_tokens: float
    """Bound to workers already."""
    rate: float
    """Tokens per second."""
    stretch: float = 1.0
    """Late quantile of observed / predicted."""
    scale: float = 1.0
    """The whole fleet's waiting tokens per token of these."""

    @property
    def per_token_s(self) -> float:
        """Seconds that one of these tokens takes."""
        return self.stretch * self.scale / self.rate

    def done_at(self, tokens: float) -> float:
        """When that many of these tokens, and all before them, are computed."""
        return self.now + self.stretch * self.start_tokens / self.rate + tokens * self.per_token_s


class Backlog:
    """Requests of one router that wait for a grant."""

    def __init__(self) -> None:
        self._classes = {one: _Class() for one in SloClass}

    @property
    def tokens(self) -> int:
        """Work of all that wait."""
        return sum(one.tokens for one in self._classes.values())

    @property
    def requests(self) -> int:
        """How many wait."""
        return sum(one.requests for one in self._classes.values())

    @property
    def num_buckets(self) -> int:
        """How many there are to walk."""
        return sum(len(one.buckets) for one in self._classes.values())

    def of_class(self, slo_class: SloClass) -> int:
        """Work of one class."""
        return self._classes[slo_class].tokens

    def add(self, one: Waiting, now: float) -> None:
        """It waits."""
        line = self._classes[one.slo_class]
        place = line.place(one.due_at)
        bucket = line.buckets[line.make(one.due_at, now) if place is None else place]
        line.tokens += one.tokens
        line.requests += 1
        bucket.tokens += one.tokens
        bucket.requests += 1
        if one.stake is Stake.ACCEPTED:
            bucket.promise(one.due_at)

    def remove(self, one: Waiting) -> None:
        """It waits no longer. What was not added, exactly as it is, is our own mistake."""
        line = self._classes[one.slo_class]
        place = line.place(one.due_at)
        assert place is not None, "removed once, as it was added"
        bucket = line.buckets[place]
        line.tokens -= one.tokens
        line.requests -= 1
        bucket.tokens -= one.tokens
        bucket.requests -= 1
        bucket.promised -= one.stake is Stake.ACCEPTED
        if bucket.requests == 0:
            del line.buckets[place], line.begins[place]

    def tokens_before(self, slo_class: SloClass, due_at: float) -> int:
        """Work of all that goes first, those due about then included."""
        line = self._classes[slo_class]
        end = bisect_right(line.begins, due_at)
        own = sum([bucket.tokens for bucket in line.buckets[:end]])
        return own + sum(self._classes[one].tokens for one in SloClass if one < slo_class)

    def harm_s(
        self, slo_class: SloClass, due_at: float, own_tokens: int, pace: Pace, *, waits: bool = True
    ) -> float:
        """By how much a request makes one behind it late that would be in time without it.

        `waits` says that it is here already. Of each bucket its first and its last promise are looked at.
        What is late anyway is no harm of this request.
        """
        before = self.tokens_before(slo_class, due_at) + (0 if waits else own_tokens)
        start_at, per_token_s = pace.done_at(0), pace.per_token_s
        own_s, harm_s = own_tokens * per_token_s, 0.0
        for one in SloClass:
            if one < slo_class:
                continue
            line = self._classes[one]
            begin = bisect_right(line.begins, due_at) if one == slo_class else 0
            for bucket in line.buckets[begin:]:
                last = before + bucket.tokens
                if bucket.promised and start_at + per_token_s * last > bucket.first_due_at:
                    first = before + bucket.tokens / bucket.requests
                    for due, tokens in ((bucket.first_due_at, first), (bucket.last_due_at, last)):
                        late_s = start_at + per_token_s * tokens - due
                        if harm_s < late_s <= own_s:
                            harm_s = late_s
                before = last
        return harm_s
