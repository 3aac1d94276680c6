"""Recent experience: how far predictions were off, how long outputs get, what was tried and admitted.

What was admitted gives classes and prompt lengths their fair shares; those of tenants are in `shares`.

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
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from scheduling.admission.programs import Programs
from scheduling.prediction import Prediction
from scheduling.request import Slo, SloClass
from scheduling.value import value

WINDOW = 64
MAX_AGE_S = 15.0
ENOUGH = 8
"""Samples that a bucket needs to be used alone."""
BUCKETS = 16
PRIOR = (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.8)
"""Assumed observed / predicted while there are too few samples: the formulas leave out hand-over and network.
Where the last samples were better, they are assumed instead (`LearntRatios`)."""


class _Window:
    """The newest samples, in the order they came and in order of size."""

    def __init__(self, max_age_s: float = MAX_AGE_S) -> None:
        self._max_age_s = max_age_s
        self._samples: deque[tuple[float, float]] = deque()
        self.ordered: list[float] = []

    def add(self, ratio: float, now: float) -> None:
        self._samples.append((now, ratio))
        insort(self.ordered, ratio)
        if len(self._samples) > WINDOW:
            self._drop()

    def fresh(self, now: float) -> list[float]:
        """Return the fresh samples in order of size; the caller must not change the list."""
        while self._samples and now - self._samples[0][0] > self._max_age_s:
            self._drop()
        return self.ordered

    def oldest_at(self, now: float) -> float:
        """Return when the oldest fresh sample came; infinite without any."""
        self.fresh(now)
        return self._samples[0][0] if self._samples else math.inf

    def _drop(self) -> None:
        _, ratio = self._samples.popleft()
        del self.ordered[bisect_left(self.ordered, ratio)]


class LearntRatios:
    """Quantiles of observed / predicted, bucketed by size: of the predicted time, or of the batch.

    The time that formulas leave out matters for a short wait, and hardly for a long one. So a bucket with few
    samples uses those of its neighbours, not all.

    Samples expire. If they were kept, a bad minute would refuse everything, and no admitted request could
    ever show that it is over. If a good minute were forgotten as well, a fleet with little to do would know
    only the prior: it would refuse most of each burst, and what it refuses brings no samples. So the newest
    samples are kept, however old, as far as they are better than the prior.
    """

    def __init__(self) -> None:
        self._buckets = [_Window() for _ in range(BUCKETS)]
        self._all = _Window()
        self._newest: deque[float] = deque(maxlen=ENOUGH)
        self._known: dict[int, tuple[float, float]] = {}
        """Quantiles by bucket, until a sample comes or ages."""
        self._oldest_at = math.inf
        """No sample is older."""

    def add(self, size: float, ratio: float, now: float) -> None:
        """Learn from one request of this size."""
        self._buckets[_bucket(size)].add(ratio, now)
        self._all.add(ratio, now)
        self._newest.append(ratio)
        self._known.clear()
        self._oldest_at = min(self._oldest_at, now)

    def knows_enough(self, now: float) -> bool:
        """Return True if there are enough samples to do without the prior."""
        return len(self._all.fresh(now)) >= ENOUGH

    def _nearest(self, bucket: int, now: float) -> list[float]:
        """Return the bucket's samples, with those of as many neighbours as it takes to have enough."""
        found = self._buckets[bucket].fresh(now)
        for distance in range(1, BUCKETS):
            if len(found) >= ENOUGH:
                break
            near = [place for place in (bucket - distance, bucket + distance) if 0 <= place < BUCKETS]
            found = sorted(chain(found, *(self._buckets[place].fresh(now) for place in near)))
        return found

    def quantiles(self, size: float, now: float) -> tuple[float, float]:
        """Return the 10 % and 90 % quantiles for a request of this size."""
        if now - self._oldest_at > MAX_AGE_S:
            self._known.clear()
            self._oldest_at = min(bucket.oldest_at(now) for bucket in self._buckets)
        bucket = _bucket(size)
        found = self._known.get(bucket)
        if found is None:
            ordered = self._nearest(bucket, now)
            if len(ordered) < ENOUGH:
                ordered = sorted((*ordered, *self._prior()))
            found = self._known[bucket] = _quantile(ordered, 0.1), _quantile(ordered, 0.9)
        return found

    def _prior(self) -> Sequence[float]:
        if len(self._newest) < ENOUGH:
            return PRIOR
        return tuple(map(min, PRIOR, sorted(self._newest)))


def _bucket(size: float) -> int:
    return min(BUCKETS - 1, int(math.log2(1.0 + size / 64.0)))


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Return the smallest sample that at least a share q does not exceed: it errs to the late side."""
    return ordered[min(len(ordered) - 1, math.ceil(q * (len(ordered) + 1)) - 1)]


FIXED_AGE_S = 60.0
"""The fixed time of an idle fleet changes slowly, but samples of a bad minute are forgotten after a
minute."""
FIXED_ENOUGH = 4
FIXED_QUANTILE = 0.75


class FixedTime:
    """The seconds that a first token takes beyond the formulas: calls and hand-over.

    Only requests that had nothing ahead of them are samples, since their time contains no waiting. As a part
    of the ratio the fixed time would be taken for load: it is much of a short prompt's time, and next to
    nothing of a long one's.

    Samples are bucketed by size, and count for prompts of their size and longer ones. A machine that is slow
    for a while makes a long prompt late by seconds; a short one would never be late by as much.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all samples: they no longer hold."""
        self._buckets = [_Window(FIXED_AGE_S) for _ in range(BUCKETS)]
        self._known: dict[int, float] = {}
        """Seconds by bucket, until a sample comes or ages."""
        self._oldest_at = math.inf

    def add(self, size: float, observed_s: float, predicted_s: float, now: float) -> None:
        """Learn from a request that had an idle fleet; `predicted_s` is without any fixed time."""
        if math.isfinite(observed_s) and math.isfinite(predicted_s):
            self._buckets[_bucket(size)].add(max(0.0, observed_s - predicted_s), now)
            self._known.clear()
            self._oldest_at = min(self._oldest_at, now)

    def seconds(self, size: float, now: float) -> float:
        """Return the seconds to add to a prediction of this size; 0 until there are enough recent samples."""
        if now - self._oldest_at > FIXED_AGE_S:
            self._known.clear()
            self._oldest_at = min(bucket.oldest_at(now) for bucket in self._buckets)
        bucket = _bucket(size)
        found = self._known.get(bucket)
        if found is None:
            found = self._known[bucket] = self._find(bucket, now)
        return found

    def _find(self, bucket: int, now: float) -> float:
        """Return the quantile over the bucket and as many buckets of shorter prompts as are needed."""
        found: list[float] = []
        for shorter in range(bucket, -1, -1):
            found = sorted((*found, *self._buckets[shorter].fresh(now)))
            if len(found) >= FIXED_ENOUGH:
                # Rounded down: the largest of a few samples may be a bad start, and never decides alone.
                return found[int(FIXED_QUANTILE * (len(found) - 1))]
        return 0.0


LENGTH_WEIGHT = 0.1


@dataclass(slots=True)
class OutputLengths:
    """The mean output length of recent outputs; before the first ends, a usual one for chats."""

    mean_tokens: float = 128.0

    def add(self, output_tokens: int) -> None:
        """Learn from one choice that ended by itself."""
        self.mean_tokens += LENGTH_WEIGHT * (output_tokens - self.mean_tokens)

    def expected(self, max_tokens: int, *, ignore_eos: bool) -> float:
        """Return the tokens that a choice will probably have."""
        return float(max_tokens) if ignore_eos else min(float(max_tokens), self.mean_tokens)


PAUSE_S = 5.0


@dataclass(slots=True)
class Trials:
    """The last trial, until it succeeds. Times are in seconds.

    Learnt costs may no longer hold: a machine that has recovered shows it only by serving a request. A fleet
    that refuses everything would never find out. So an idle fleet tries a request even if the learnt costs
    speak against it, as long as the quickest steps seen so far would keep its SLO. A trial that fails costs
    one broken promise; the next similar request waits for `PAUSE_S`.
    """

    _tokens: int = 0
    _ttft_ms: float = 0.0
    _until: float = -math.inf

    def wait_s(self, prompt_tokens: int, slo: Slo, now: float) -> float:
        """Return the seconds until such a request may be tried; 0 if it may now.

        A trial says nothing about shorter prompts, or about requests with a longer TTFT limit.
        """
        is_like_the_last = prompt_tokens >= self._tokens and _ttft_ms(slo) <= self._ttft_ms
        return max(0.0, self._until - now) if is_like_the_last else 0.0

    def begin(self, prompt_tokens: int, slo: Slo, now: float) -> None:
        """Remember a request as the last trial."""
        self._tokens, self._ttft_ms, self._until = prompt_tokens, _ttft_ms(slo), now + PAUSE_S

    def succeed(self) -> None:
        """Let the next request be tried at once: the last trial kept its promise."""
        self._until = -math.inf


def _ttft_ms(slo: Slo) -> float:
    return math.inf if slo.ttft_ms is None else slo.ttft_ms


# Shares of classes and lengths

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


LENGTHS_WINDOW = 256
"""Requests remembered."""
LENGTHS_AGE_S = 60.0
"""Refusals before a quiet minute say nothing about the present."""
ENOUGH_LENGTHS = 60
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

    The time of a call depends on `LENGTHS_WINDOW`, not on the number of requests so far.
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
        if load < GATE or count < ENOUGH_LENGTHS:
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
        while self._newest and (
            len(self._newest) > LENGTHS_WINDOW or now - self._newest[0][0] > LENGTHS_AGE_S
        ):
            _, entry = self._newest.popleft()
            place = bisect_left(self._ordered, entry)
            del self._ordered[place], self._admitted[place]


# All of it


@value
class Spread:
    """Learnt 10 % and 90 % quantiles of observed / predicted."""

    q10: float
    q90: float


def at_most(spread: Spread, ratio: float) -> Spread:
    """Cap a spread at `ratio`, where what was learnt under other conditions would refuse what can be kept.

    An idle fleet is judged by the bare prediction, so by ratios of at most 1. Ratios learnt under load may be
    worse; if they refused everything, no admitted request could ever show that the load is over. The risk is
    one request at a time. And where workers shorten their steps for a stated TPOT, `ratio` is such that
    predicted · ratio is the pace that these steps keep: outputs of a few tokens, which are slower than the
    mean of many, must not refuse what the step rule will keep.
    """
    return Spread(min(spread.q10, ratio), min(spread.q90, ratio))


TTFT_SCALE = 64_000.0
"""Ratios are bucketed by powers of two from 64 units on; a unit is a millisecond of the prediction."""
TPOT_SCALE = 64.0
"""Ratios are bucketed by powers of two from 64 units of work on; a sequence of the batch counts as 64."""


@dataclass(slots=True)
class Learnt:
    """All that one router has learnt from the requests that it admitted, and from those it refused."""

    ttft: LearntRatios = field(default_factory=LearntRatios)
    ttft_after_slot: LearntRatios = field(default_factory=LearntRatios)
    """Requests that waited for a decode slot: the ends of outputs are harder to foresee than prompts."""
    fixed: FixedTime = field(default_factory=FixedTime)
    tpot: LearntRatios = field(default_factory=LearntRatios)
    lengths: dict[SloClass, OutputLengths] = field(
        default_factory=lambda: {slo_class: OutputLengths() for slo_class in SloClass}
    )
    admitted: AdmittedLoad = field(default_factory=AdmittedLoad)
    by_class: ClassShares = field(default_factory=ClassShares)
    by_length: dict[SloClass, LengthShares] = field(
        default_factory=lambda: {slo_class: LengthShares() for slo_class in SloClass}
    )
    trials: Trials = field(default_factory=Trials)
    programs: Programs = field(default_factory=Programs)
    virtual_finish: float = 0.0
    """When all requests refused so far could be served, if they came back in turn; the next refused one is
    told to come behind them."""

    def admit(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """Count the work of a request that was admitted."""
        self.admitted.add(tokens, now)
        self.by_class.admitted(slo_class, tokens, now)

    def load(self, rate: float, now: float) -> float:
        """Return the prompt tokens admitted per second of late, by the `rate` of the fleet; at most 1."""
        return min(1.0, self.admitted.rate(now) / rate)

    def learn_ttft(self, predicted: Prediction, observed_s: float, now: float) -> None:
        """Learn from a request that got its first token `observed_s` after the router's receipt."""
        observed_s -= predicted.waited_s
        if predicted.wait_s == 0:
            own_s = predicted.ttft_s - predicted.fixed_s
            self.fixed.add(own_s * TTFT_SCALE, observed_s, own_s, now)
        learnt = self.ttft_after_slot if predicted.waits_for_slot else self.ttft
        learnt.add(predicted.ttft_s * TTFT_SCALE, observed_s / predicted.ttft_s, now)

    def fixed_s(self, own_s: float, now: float) -> float:
        """Return the time that a first token takes beyond `own_s`, the time to compute its prompt."""
        return self.fixed.seconds(own_s * TTFT_SCALE, now)

    def spreads(
        self, predicted: Prediction, now: float, most_ttft: float, most_tpot: float
    ) -> tuple[Spread, Spread]:
        """Return how far such predictions of TTFT and TPOT are off, at most by these ratios."""
        after_slot = predicted.waits_for_slot and self.ttft_after_slot.knows_enough(now)
        learnt = self.ttft_after_slot if after_slot else self.ttft
        ttft = Spread(*learnt.quantiles(predicted.ttft_s * TTFT_SCALE, now))
        tpot = Spread(*self.tpot.quantiles(predicted.batch_size * TPOT_SCALE, now))
        return at_most(ttft, most_ttft), at_most(tpot, most_tpot)

    def late_ttft_s(self, wait_s: float, own_s: float, now: float) -> float:
        """Return the 90th percentile of the TTFT after this wait and this time to compute the prompt."""
        ttft_s = self.fixed_s(own_s, now) + wait_s + own_s
        _, q90 = self.ttft_quantiles(ttft_s, now)
        return ttft_s * q90

    def ttft_quantiles(self, ttft_s: float, now: float) -> tuple[float, float]:
        """Return the 10th and 90th percentile of observed / predicted for a predicted TTFT."""
        return self.ttft.quantiles(ttft_s * TTFT_SCALE, now)
