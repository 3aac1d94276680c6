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
    """It asked for no TTFT and is never late."""
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
class _Class:
    """Buckets in order, none empty, none overlapping; element i of each list is of bucket i.

    Columns, since an arrival looks at most of them.
    """

    tokens: int = 0
    requests: int = 0
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """Before which those of a bucket are due."""
    sums: list[int] = field(default_factory=list)
    """Tokens."""
    counts: list[int] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    first_due: list[float] = field(default_factory=list)
    """Of the promised ones there have been since the bucket last held none; never while it holds none."""
    last_due: list[float] = field(default_factory=list)

    def place(self, due_at: float) -> int | None:
        """Where the bucket is that holds this due time; None where there is none."""
        place = bisect_right(self.begins, due_at) - 1
        return place if place >= 0 and due_at < self.ends[place] else None

    def make(self, due_at: float, now: float) -> int:
        """A new bucket around a due time, in the gap that is left between its neighbours."""
        place = bisect_right(self.begins, due_at)
        width = max(LEAST_WIDTH_S, (due_at - now) * WIDTH_SHARE)
        begin = math.floor(due_at / width) * width
        begin = min(begin, due_at)  # the quotient may have been rounded up
        end = max(begin + width, math.nextafter(due_at, math.inf))
        if place > 0:
            begin = max(begin, self.ends[place - 1])
        if place < len(self.begins):
            end = min(end, self.begins[place])
        self.begins.insert(place, begin)
        self.ends.insert(place, end)
        for column in (self.sums, self.counts, self.promised):
            column.insert(place, 0)
        self.first_due.insert(place, math.inf)
        self.last_due.insert(place, -math.inf)
        return place

    def promise(self, place: int, due_at: float) -> None:
        """One of the bucket was promised to be in time."""
        self.promised[place] += 1
        self.first_due[place] = min(self.first_due[place], due_at)
        self.last_due[place] = max(self.last_due[place], due_at)

    def forget_promise(self, place: int) -> None:
        """It is there no longer."""
        self.promised[place] -= 1
        if self.promised[place] == 0:
            self.first_due[place], self.last_due[place] = math.inf, -math.inf

    def drop(self, place: int) -> None:
        """The bucket is empty."""
        for column in (self.begins, self.ends, self.first_due, self.last_due):
            del column[place]
        for counts in (self.sums, self.counts, self.promised):
            del counts[place]


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

    def requests_of(self, slo_class: SloClass) -> int:
        """How many of one class wait."""
        return self._classes[slo_class].requests

    def add(self, one: Waiting, now: float) -> None:
        """It waits."""
        line = self._classes[one.slo_class]
        place = line.place(one.due_at)
        if place is None:
            place = line.make(one.due_at, now)
        line.tokens += one.tokens
        line.requests += 1
        line.sums[place] += one.tokens
        line.counts[place] += 1
        if one.stake is Stake.ACCEPTED:
            line.promise(place, one.due_at)

    def remove(self, one: Waiting) -> None:
        """It waits no longer. What was not added, exactly as it is, is our own mistake."""
        line = self._classes[one.slo_class]
        place = line.place(one.due_at)
        assert place is not None, "removed once, as it was added"
        line.tokens -= one.tokens
        line.requests -= 1
        line.sums[place] -= one.tokens
        line.counts[place] -= 1
        if one.stake is Stake.ACCEPTED:
            line.forget_promise(place)
        if line.counts[place] == 0:
            line.drop(place)

    def tokens_before(self, slo_class: SloClass, due_at: float) -> int:
        """Work of all that goes first, those due about then included."""
        line = self._classes[slo_class]
        end = bisect_right(line.begins, due_at)
        own = sum(line.sums[:end])
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
        for one, line in self._classes.items():
            if one < slo_class:
                continue
            begin = bisect_right(line.begins, due_at) if one == slo_class else 0
            columns = (line.sums, line.counts, line.first_due, line.last_due)
            for tokens, count, first_due, last_due in zip(*(one[begin:] for one in columns), strict=True):
                last = before + tokens
                last_at = start_at + per_token_s * last
                if last_at > first_due:
                    late_s = start_at + per_token_s * (before + tokens / count) - first_due
                    if harm_s < late_s <= own_s:
                        harm_s = late_s
                    late_s = last_at - last_due
                    if harm_s < late_s <= own_s:
                        harm_s = late_s
                before = last
        return harm_s
