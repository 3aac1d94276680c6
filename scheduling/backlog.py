"""What waits, by class and due time, in buckets: an arrival is judged by walking buckets, not requests.

A bucket is as wide as a due time may be off without harm, so there are some hundreds of them however many
requests wait. Sums are kept as requests come and go and are never negative.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from scheduling.request import SloClass

WIDTH_S = {SloClass.INTERACTIVE: 0.05, SloClass.STANDARD: 0.25, SloClass.BATCH: 2.5}


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits. Times are seconds on the caller's clock."""

    slo_class: SloClass
    due_at: float
    """By which it is ordered, promised or not."""
    tokens: int
    """Prompt tokens to compute."""
    is_promised: bool
    """Its first token was promised by then."""


@dataclass(slots=True)
class _Bucket:
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
    tokens: int = 0
    requests: int = 0
    order: list[int] = field(default_factory=list)
    buckets: dict[int, _Bucket] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
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

    def done_at(self, tokens: float) -> float:
        """When that many of these tokens, and all before them, are computed."""
        return self.now + self.stretch * (self.start_tokens + tokens * self.scale) / self.rate


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

    def of_class(self, slo_class: SloClass) -> int:
        """Work of one class."""
        return self._classes[slo_class].tokens

    def add(self, one: Waiting) -> None:
        """It waits."""
        line, place = self._classes[one.slo_class], _place(one)
        bucket = line.buckets.get(place)
        if bucket is None:
            bucket = line.buckets[place] = _Bucket()
            insort(line.order, place)
        line.tokens += one.tokens
        line.requests += 1
        bucket.tokens += one.tokens
        bucket.requests += 1
        if one.is_promised:
            bucket.promise(one.due_at)

    def remove(self, one: Waiting) -> None:
        """It waits no longer. What was not added, exactly as it is, is our own mistake."""
        line, place = self._classes[one.slo_class], _place(one)
        bucket = line.buckets[place]
        line.tokens -= one.tokens
        line.requests -= 1
        bucket.tokens -= one.tokens
        bucket.requests -= 1
        bucket.promised -= one.is_promised
        assert bucket.tokens >= 0, "removed once, as it was added"
        if bucket.requests == 0:
            del line.buckets[place]
            del line.order[bisect_right(line.order, place) - 1]

    def tokens_before(self, slo_class: SloClass, due_at: float) -> int:
        """Work of all that goes first, those due about then included."""
        line = self._classes[slo_class]
        end = bisect_right(line.order, _index(slo_class, due_at))
        own = sum(line.buckets[place].tokens for place in line.order[:end])
        return own + sum(self._classes[one].tokens for one in SloClass if one < slo_class)

    def harm_s(
        self, slo_class: SloClass, due_at: float, own_tokens: int, pace: Pace, *, waits: bool = True
    ) -> float:
        """By how much a request makes one behind it late that would be in time without it.

        `waits` says that it is here already. Of each bucket its first and its last promise are looked at.
        What is late anyway is no harm of this request.
        """
        before = self.tokens_before(slo_class, due_at) + (0 if waits else own_tokens)
        harm_s = 0.0
        for one in SloClass:
            line = self._classes[one]
            if one < slo_class or not line.order:
                continue
            begin = bisect_right(line.order, _index(one, due_at)) if one == slo_class else 0
            for place in line.order[begin:]:
                bucket = line.buckets[place]
                if bucket.promised:
                    first = before + bucket.tokens / bucket.requests
                    last = before + bucket.tokens
                    for due, tokens in ((bucket.first_due_at, first), (bucket.last_due_at, last)):
                        late_s = pace.done_at(tokens) - due
                        if late_s > harm_s and pace.done_at(max(0.0, tokens - own_tokens)) <= due:
                            harm_s = late_s
                before += bucket.tokens
        return harm_s


def _place(one: Waiting) -> int:
    return _index(one.slo_class, one.due_at)


def _index(slo_class: SloClass, due_at: float) -> int:
    return int(due_at / WIDTH_S[slo_class])
