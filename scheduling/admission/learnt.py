"""Recent experience: how far predictions were off, how long outputs get, and what was tried."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from scheduling.admission.admission import Spread
from scheduling.admission.fair_shares import AdmittedLoad, ClassShares, LengthShares
from scheduling.admission.prediction import Prediction
from scheduling.request import Slo, SloClass

WINDOW = 64
MAX_AGE_S = 15.0
ENOUGH = 8
"""Samples that a bucket needs to be used alone."""
BUCKETS = 16
PRIOR = (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.8)
"""Assumed observed / predicted until there are enough samples: the formulas leave out hand-over and
network."""


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
    ever show that it is over.
    """

    def __init__(self) -> None:
        self._buckets = [_Window() for _ in range(BUCKETS)]
        self._all = _Window()
        self._known: dict[int, tuple[float, float]] = {}
        """Quantiles by bucket, until a sample comes or ages."""
        self._oldest_at = math.inf
        """No sample is older."""

    def add(self, size: float, ratio: float, now: float) -> None:
        """Learn from one request of this size."""
        self._buckets[_bucket(size)].add(ratio, now)
        self._all.add(ratio, now)
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
                ordered = sorted((*ordered, *PRIOR))
            found = self._known[bucket] = _quantile(ordered, 0.1), _quantile(ordered, 0.9)
        return found


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


TTFT_SCALE = 64_000.0
"""Ratios are bucketed by powers of two from 64 units on; a unit is a millisecond of the prediction."""


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
    virtual_finish: float = 0.0
    """When all requests refused so far could be served, if they came back in turn; the next refused one is
    told to come behind them."""

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

    def ttft_spread(self, predicted: Prediction, now: float) -> Spread:
        """Return how far such predictions are off."""
        after_slot = predicted.waits_for_slot and self.ttft_after_slot.knows_enough(now)
        learnt = self.ttft_after_slot if after_slot else self.ttft
        return Spread(*learnt.quantiles(predicted.ttft_s * TTFT_SCALE, now))

    def late_ttft_s(self, wait_s: float, own_s: float, now: float) -> float:
        """Return the 90th percentile of the TTFT after this wait and this time to compute the prompt."""
        ttft_s = self.fixed_s(own_s, now) + wait_s + own_s
        _, q90 = self.ttft_quantiles(ttft_s, now)
        return ttft_s * q90

    def ttft_quantiles(self, ttft_s: float, now: float) -> tuple[float, float]:
        """Return the 10th and 90th percentile of observed / predicted for a predicted TTFT."""
        return self.ttft.quantiles(ttft_s * TTFT_SCALE, now)
