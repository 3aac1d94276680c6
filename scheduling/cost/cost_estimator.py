"""A worker's running estimate of its step costs: its trust, its band, and the samples for a new fit.

It is pure and cheap: some microseconds a step. The owner runs the fit itself
(`scheduling.cost.cost_fit.fit`), which takes milliseconds, elsewhere:

    changed = estimator.observe(shape, seconds)     # each step; publish the model unless it is None
    if estimator.needs_fit:
        fitted = fit(estimator.take_samples())      # on another thread
        changed = estimator.adopt(fitted)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduling.cost.cost_model import WILD, CostModel, Sample, StepShape, is_usable, quantile

WINDOW = 256
"""The number of recent steps that band and trust depend on."""
MIN_JUDGED = 32
MEDIAN_OFF = 0.07
MIN_COVERED = 0.85
REFRESH_EVERY = WINDOW
"""Steps between two updates of the band; each band is judged by the steps after it."""
FIT_EVERY = 1024
FIT_EVERY_UNTRUSTED = 64
PER_BUCKET = 8


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The judgement on one step by the model that was published before it ran."""

    is_slow: bool
    is_fast: bool
    is_covered: bool


class CostEstimator:
    """Follows the steps of one worker.

    The model is trusted until, over the last `WINDOW` steps, the median of actual / predicted is off by more
    than MEDIAN_OFF or q95 holds for fewer than MIN_COVERED of them. Each step is judged by the model that was
    published when it ran. Trust returns when a new fit, or the steps themselves, are within these limits.

    The latest few samples are kept for each octave of tokens and of context, so that an hour of equal steps
    does not push out the others.
    """

    def __init__(self, model: CostModel, samples: Iterable[Sample] = ()) -> None:
        self._model = model
        self._recent: deque[tuple[StepShape, float, float]] = deque(maxlen=WINDOW)
        self._verdicts: deque[_Verdict] = deque(maxlen=WINDOW)
        self._num_slow = self._num_fast = self._num_covered = 0
        self._buckets: dict[tuple[int, int], deque[Sample]] = {}
        self._since_fit = self._since_refresh = 0
        for sample in samples:
            if is_usable(*sample):
                self._remember(sample)

    @property
    def model(self) -> CostModel:
        """The model published last."""
        return self._model

    @property
    def needs_fit(self) -> bool:
        return self._since_fit >= (FIT_EVERY if self._model.is_trusted else FIT_EVERY_UNTRUSTED)

    def observe(self, shape: StepShape, seconds: float) -> CostModel | None:
        """Take a step in, and return the model if it changed and should be published.

        A step that is not finite or not above 0 is dropped. A step that is wildly off the prediction counts
        against the trust and is kept out of fit and band.
        """
        if not is_usable(shape, seconds):
            return None
        self._since_fit += 1
        self._since_refresh += 1
        predicted = self._model.predict(shape)
        ratio = seconds / predicted if predicted > 0 else math.inf
        self._judge(ratio)
        self._recent.append((shape, seconds, ratio))
        if predicted == 0 or _is_tame(ratio):
            self._remember((shape, seconds))
        if self._model.is_trusted and not self._deserves_trust:
            self._model = replace(self._model, is_trusted=False)
            return self._model
        return self._refresh() if self._since_refresh >= REFRESH_EVERY else None

    def take_samples(self) -> list[Sample]:
        """Return all samples for a fit, and restart the count of steps until the next one."""
        self._since_fit = 0
        return [sample for bucket in self._buckets.values() for sample in bucket]

    def adopt(self, fitted: CostModel) -> CostModel:
        """Adopt a fit, scaled to the level of the recent steps, and return the model to publish.

        The fit uses samples of any age and gives how costs differ between steps. The recent steps show better
        how fast the machine is right now.
        """
        # Without trust, the machine has changed since the earlier steps.
        num_recent = WINDOW if self._model.is_trusted else FIT_EVERY_UNTRUSTED
        steps = [(shape, seconds) for shape, seconds, _ in self._recent][-num_recent:]
        predictions = ((seconds, fitted.predict(shape)) for shape, seconds in steps)
        ratios = [seconds / predicted for seconds, predicted in predictions if predicted > 0]
        tame = sorted(ratio for ratio in ratios if _is_tame(ratio))
        level = quantile(tame, 0.5) if len(tame) >= MIN_JUDGED else 1.0
        self._restart(replace(fitted.scaled(level), is_trusted=True), steps)
        return self._model

    def _restart(self, model: CostModel, steps: Iterable[Sample]) -> None:
        """Judge a model by some steps as if it had been published when they ran."""
        self._recent.clear()
        self._verdicts.clear()
        self._num_slow = self._num_fast = self._num_covered = 0
        for shape, seconds in steps:
            if (predicted := model.predict(shape)) > 0:
                self._recent.append((shape, seconds, seconds / predicted))
        self._model = model
        self._model = self._with_band()
        for _, _, ratio in self._recent:
            self._judge(ratio)
        self._model = replace(self._model, is_trusted=self._deserves_trust)
        self._since_refresh = 0

    def _refresh(self) -> CostModel | None:
        """Update band and trust, and return the model if it changed."""
        self._since_refresh = 0
        model = replace(self._with_band(), is_trusted=self._deserves_trust)
        changed = model != self._model
        self._model = model
        return model if changed else None

    def _with_band(self) -> CostModel:
        if len(self._recent) < MIN_JUDGED:
            return self._model
        return self._model.with_ratios(ratio for _, _, ratio in self._recent)

    @property
    def _deserves_trust(self) -> bool:
        judged = len(self._verdicts)
        if judged < MIN_JUDGED:
            return self._model.is_trusted
        is_off = max(self._num_slow, self._num_fast) > judged / 2
        return not is_off and self._num_covered >= MIN_COVERED * judged

    def _judge(self, ratio: float) -> None:
        """Judge a step. Counts are enough: the median is above a value exactly when most steps are."""
        if len(self._verdicts) == WINDOW:
            self._count(self._verdicts[0], -1)
        verdict = _Verdict(ratio > 1 + MEDIAN_OFF, ratio < 1 - MEDIAN_OFF, ratio <= self._model.ratio_q95)
        self._verdicts.append(verdict)
        self._count(verdict, 1)

    def _count(self, verdict: _Verdict, by: int) -> None:
        self._num_slow += by * verdict.is_slow
        self._num_fast += by * verdict.is_fast
        self._num_covered += by * verdict.is_covered

    def _remember(self, sample: Sample) -> None:
        shape = sample[0]
        context = int(shape.decode_context + shape.chunk_attention)
        bucket = int(shape.num_tokens).bit_length(), context.bit_length()
        self._buckets.setdefault(bucket, deque(maxlen=PER_BUCKET)).append(sample)


def _is_tame(ratio: float) -> bool:
    return 1 / WILD <= ratio <= WILD
