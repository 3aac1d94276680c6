"""The order of the queue, and the waiting requests in it: one by one, and in buckets by class and due time.

The queue goes by class, then by the earliest due first token. Earliest deadline first meets every due time
that any order could meet, as long as the work fits (Liu & Layland, "Scheduling Algorithms for
Multiprogramming in a Hard-Real-Time Environment", 1973). Classes come before due times, so that a flood of
batch work never delays an interactive request.

`rank` is the order; `router/core/dispatch.py` asks for it (`enqueue`), and the store sorts by it.

Judging an arrival walks buckets, not requests. A bucket's width is a share of the time until it is due, since
a due time far ahead may be less exact. So a class has at most some hundreds of buckets, however many requests
wait. Sums are kept as requests come and go and are never negative. `WaitingLine` has the requests one by one.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from scheduling.policies.policy import Order
from scheduling.request import Slo, SloClass
from scheduling.value import value

LEAST_WIDTH_S = 0.05
WIDTH_SHARE = 1 / 32
"""Width of a bucket as a share of the time until it is due, when it is made."""

DEFAULT_TTFT_MS = {SloClass.INTERACTIVE: 5_000, SloClass.STANDARD: 30_000, SloClass.BATCH: 300_000}
"""The TTFT limit for requests that state none. It is far beyond usual promises, so requests with a limit go
first within a class; it is finite, so requests without one are not starved."""

WORK_WEIGHT = 1000.0
"""Seconds of waiting that outweigh a second of work in `Order.SHORT`, so that nobody waits for ever."""

Place = tuple[int, str]
"""Score and request key: like Redis, which orders equal scores by their members."""
MAX_PLACES = 256
"""Places of a block. A call looks at one block, and at the sums of those before it."""


def due_in_ms(slo: Slo, waited_s: float) -> int:
    """Return the milliseconds from now until the first token is due; 0 if it is overdue."""
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return max(0, stated - round(waited_s * 1000))


def due_at(slo: Slo, received_at: float) -> float:
    """Return when the first token is due, stated or by default; seconds on the caller's clock.

    It orders the queue. It is no promise: a request that states no TTFT is never late.
    """
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return received_at + stated / 1000


def rank(
    order: Order, slo: Slo, waited_s: float, work_s: float = 0.0, *, late: bool = False
) -> tuple[int, int]:
    """Return the rank in the fleet's queue: (class, milliseconds from now until due).

    `work_s` is what the prompt takes, and `late` is true of a request that could not be served in time; both
    count only where the order goes by work. A request that has waited longer is due earlier, so asking for a
    place again does not change the order.
    """
    if order is Order.ARRIVAL:
        return 0, -round(waited_s * 1000)
    if order is Order.DUE:
        return int(slo.slo_class), due_in_ms(slo, waited_s)
    if order is Order.DUE_AND_SHORT:
        due_s = due_at(slo, -waited_s) + work_s
    else:
        due_s = WORK_WEIGHT * work_s - waited_s
    return int(SloClass.BATCH if late else SloClass.INTERACTIVE), round(due_s * 1000)


class Stake(enum.Enum):
    """The decision that a waiting request got."""

    NONE = "none"
    """It has no TTFT limit and is never late."""
    AT_RISK = "at_risk"
    ACCEPTED = "accepted"


@value
class Waiting:
    """A request that waits and has not started. Times are seconds on the caller's clock."""

    key: str
    slo_class: SloClass
    due_at: float
    """Orders the queue, promised or not."""
    tokens: int
    """Prompt tokens to compute."""
    stake: Stake


@dataclass(slots=True)
class _Class:
    """One class's buckets in order, none empty, none overlapping; element i of each list belongs to bucket i.

    They are stored as columns, since an arrival reads most buckets.
    """

    tokens: int = 0
    requests: int = 0
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """Requests of a bucket are due before its end."""
    sums: list[int] = field(default_factory=list)
    """Tokens."""
    counts: list[int] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    first_due: list[float] = field(default_factory=list)
    """Earliest due time of the promised requests since the bucket last held none; infinite while it holds
    none."""
    last_due: list[float] = field(default_factory=list)

    def place(self, due_at: float) -> int | None:
        """Return the index of the bucket that contains this due time; None if there is none."""
        place = bisect_right(self.begins, due_at) - 1
        return place if place >= 0 and due_at < self.ends[place] else None

    def make(self, due_at: float, now: float) -> int:
        """Insert a bucket around a due time, in the gap between its neighbours, and return its index."""
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
        """Count a promised request in the bucket."""
        self.promised[place] += 1
        self.first_due[place] = min(self.first_due[place], due_at)
        self.last_due[place] = max(self.last_due[place], due_at)

    def forget_promise(self, place: int) -> None:
        """Remove a promised request from the count."""
        self.promised[place] -= 1
        if self.promised[place] == 0:
            self.first_due[place], self.last_due[place] = math.inf, -math.inf

    def drop(self, place: int) -> None:
        """Remove an empty bucket."""
        for column in (self.begins, self.ends, self.first_due, self.last_due):
            del column[place]
        for counts in (self.sums, self.counts, self.promised):
            del counts[place]


@value
class Pace:
    """How fast waiting work is done."""

    now: float
    start_tokens: float
    """Tokens bound to workers already."""
    rate: float
    """Tokens per second."""
    stretch: float = 1.0
    """The late quantile of observed / predicted."""
    scale: float = 1.0
    """Tokens that wait in the whole fleet per token in this backlog."""
    lone_token_s: float = 0.0
    """Seconds by which a token takes longer than at `rate`, in the prompt that is computed last: a pipeline
    computes several prompts at once, each slowly."""

    @property
    def per_token_s(self) -> float:
        """Seconds per token of this backlog."""
        return self.stretch * self.scale / self.rate

    def done_at(self, tokens: float) -> float:
        """Return when this many tokens of the backlog, and all before them, are computed."""
        return self.now + self.stretch * self.start_tokens / self.rate + tokens * self.per_token_s


class Backlog:
    """Requests of one router that wait for a grant."""

    def __init__(self) -> None:
        self._classes = {slo_class: _Class() for slo_class in SloClass}

    @property
    def tokens(self) -> int:
        """Tokens of all waiting requests."""
        return sum(line.tokens for line in self._classes.values())

    def requests_of(self, slo_class: SloClass) -> int:
        """Return the number of waiting requests of one class."""
        return self._classes[slo_class].requests

    def add(self, waiting: Waiting, now: float) -> None:
        """Add a request."""
        line = self._classes[waiting.slo_class]
        place = line.place(waiting.due_at)
        if place is None:
            place = line.make(waiting.due_at, now)
        line.tokens += waiting.tokens
        line.requests += 1
        line.sums[place] += waiting.tokens
        line.counts[place] += 1
        if waiting.stake is Stake.ACCEPTED:
            line.promise(place, waiting.due_at)

    def remove(self, waiting: Waiting) -> None:
        """Remove a request, which must be equal to what was added."""
        line = self._classes[waiting.slo_class]
        place = line.place(waiting.due_at)
        assert place is not None, "removed once, as it was added"
        line.tokens -= waiting.tokens
        line.requests -= 1
        line.sums[place] -= waiting.tokens
        line.counts[place] -= 1
        if waiting.stake is Stake.ACCEPTED:
            line.forget_promise(place)
        if line.counts[place] == 0:
            line.drop(place)

    def tokens_before(self, slo_class: SloClass, due_at: float) -> int:
        """Return the tokens of all requests that go first, including those due at about the same time."""
        line = self._classes[slo_class]
        end = bisect_right(line.begins, due_at)
        own = sum(line.sums[:end])
        return own + sum(self._classes[higher].tokens for higher in SloClass if higher < slo_class)

    def harm_s(
        self, slo_class: SloClass, due_at: float, own_tokens: int, pace: Pace, *, waits: bool = True
    ) -> float:
        """Return by how many seconds a request makes one behind it late that would be in time without it.

        `waits` is True if the request is in the backlog already. Only the first and the last promise of each
        bucket are checked. Requests that are late anyway do not count.
        """
        before = self.tokens_before(slo_class, due_at) + (0 if waits else own_tokens)
        start_at, per_token_s = pace.done_at(0), pace.per_token_s
        lone_token_s = pace.stretch * pace.lone_token_s
        own_s, harm_s = own_tokens * per_token_s, 0.0
        for line_class, line in self._classes.items():
            if line_class < slo_class:
                continue
            begin = bisect_right(line.begins, due_at) if line_class == slo_class else 0
            columns = (line.sums, line.counts, line.first_due, line.last_due)
            behind = (column[begin:] for column in columns)
            for tokens, count, first_due, last_due in zip(*behind, strict=True):
                last = before + tokens
                done_at = start_at + lone_token_s * (tokens / count)
                last_at = done_at + per_token_s * last
                if last_at > first_due:
                    late_s = done_at + per_token_s * (before + tokens / count) - first_due
                    if harm_s < late_s <= own_s:
                        harm_s = late_s
                    late_s = last_at - last_due
                    if harm_s < late_s <= own_s:
                        harm_s = late_s
                before = last
        return harm_s


@dataclass(slots=True)
class _Block:
    """Places that follow each other, with the work of each and of all."""

    places: list[Place] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sum_of_tokens: int = 0


class WaitingLine:
    """Places in order, each at most once. With ten thousand of them a call takes some microseconds."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[Place] = []
        """The last place of each block."""
        self._num_places = 0

    def __len__(self) -> int:
        return self._num_places

    @property
    def tokens(self) -> int:
        """Tokens of all waiting requests."""
        return sum(block.sum_of_tokens for block in self._blocks)

    @property
    def head(self) -> Place | None:
        """The first place."""
        return self._blocks[0].places[0] if self._blocks else None

    def first(self, most: int) -> list[Place]:
        """Return the first places, at most so many."""
        return list(islice(self._places, most))

    @property
    def _places(self) -> Iterator[Place]:
        return chain.from_iterable(block.places for block in self._blocks)

    def add(self, place: Place, tokens: int) -> None:
        """Add a place with its work."""
        if not self._blocks:
            self._blocks.append(_Block())
            self._lasts.append(place)
        number = min(bisect_left(self._lasts, place), len(self._lasts) - 1)
        block = self._blocks[number]
        at = bisect_left(block.places, place)
        assert block.places[at : at + 1] != [place], place
        block.places.insert(at, place)
        block.tokens.insert(at, tokens)
        block.sum_of_tokens += tokens
        self._num_places += 1
        if len(block.places) > MAX_PLACES:
            self._split(number)
        else:
            self._lasts[number] = block.places[-1]

    def remove(self, place: Place) -> None:
        """Remove a place that is there."""
        number = bisect_left(self._lasts, place)
        block = self._blocks[number]
        at = bisect_left(block.places, place)
        assert block.places[at] == place, place
        block.sum_of_tokens -= block.tokens[at]
        del block.places[at], block.tokens[at]
        self._num_places -= 1
        if block.places:
            self._lasts[number] = block.places[-1]
        else:
            del self._blocks[number], self._lasts[number]

    def ahead_of(self, place: Place) -> tuple[int, int]:
        """Return the number of requests ahead of `place`, and their work."""
        number = bisect_left(self._lasts, place)
        before = self._blocks[:number]
        count = sum(len(block.places) for block in before)
        tokens = sum(block.sum_of_tokens for block in before)
        if number < len(self._blocks):
            block = self._blocks[number]
            at = bisect_left(block.places, place)
            count, tokens = count + at, tokens + sum(block.tokens[:at])
        return count, tokens

    def _split(self, number: int) -> None:
        """Divide a block that has become too long."""
        block, half = self._blocks[number], MAX_PLACES // 2
        later = _Block(block.places[half:], block.tokens[half:], sum(block.tokens[half:]))
        del block.places[half:], block.tokens[half:]
        block.sum_of_tokens -= later.sum_of_tokens
        self._blocks.insert(number + 1, later)
        self._lasts[number : number + 1] = [block.places[-1], later.places[-1]]
