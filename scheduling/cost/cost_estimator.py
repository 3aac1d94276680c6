"""A worker's running estimate of its step costs: its trust, its bands, and the samples for a new fit.

It is pure and cheap: some microseconds a step. The owner runs the fit itself
(`scheduling.cost.cost_fit.fit`), which takes milliseconds, elsewhere:

    changed = estimator.observe(shape, seconds)     # each step; publish the model unless it is None
    if estimator.needs_fit:
        fitted = fit(estimator.take_samples(), floor_s=estimator.model.chunk_floor_s)     # on another thread
        changed = estimator.adopt(fitted)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from scheduling.cost_model import WILD, Band, CostModel, Sample, StepShape, is_usable, quantile

WINDOW = 256
"""The number of recent steps that band and trust depend on."""
MIN_JUDGED = 32
MEDIAN_OFF = 0.07
MIN_COVERED = 0.85
REFRESH_EVERY = WINDOW
"""Steps between two updates of the bands; each band is judged by the steps after it."""
FIT_EVERY = 1024
FIT_EVERY_UNTRUSTED = 64
PER_BUCKET = 8
FLOOR_STEPS = 16
"""The number of recent steps whose median is the least time of a step with a chunk."""
UNEXPLAINED = 1.25
"""A step that takes more than this many times what its contents cost was as long as the host needed."""


class CostEstimator:
    """Follows the steps of one worker.

    The model is trusted until, over the last `WINDOW` steps, the median of actual / predicted is off by more
    than MEDIAN_OFF or q95 holds for fewer than MIN_COVERED of them. Each step is judged by the model that was
    published when it ran. Trust returns when a new fit, or the steps themselves, are within these limits.

    Where steps with a chunk have a least time, as on a GPU, three things differ. These steps are judged apart
    from the others, and by their band alone. Their least time follows the latest of them: it is the host's,
    which varies from second to second with what else the host does. And when trust would be lost, the model
    is scaled at once to the latest steps instead, until a new fit comes: without trust, steps would have a
    fixed number of tokens, and on a GPU that many take longer than any promise about tokens allows.

    The latest few samples are kept for each octave of tokens and of context, so that an hour of equal steps
    does not push out the others.
    """

    def __init__(self, model: CostModel, samples: Iterable[Sample] = ()) -> None:
        self._model = model
        self._steps = StepRecord()
        self._chunks = StepRecord(has_level=False) if model.chunk_floor_s > 0 else self._steps
        self._at_floor_s: deque[float] = deque(maxlen=FLOOR_STEPS)
        self._buckets: dict[tuple[int, int], deque[Sample]] = {}
        self._since_fit = self._since_refresh = 0
        self._is_off = False
        for sample in samples:
            if is_usable(*sample):
                self._remember(sample)

    @property
    def model(self) -> CostModel:
        """The model published last."""
        return self._model

    @property
    def needs_fit(self) -> bool:
        is_settled = self._model.is_trusted and not self._is_off
        return self._since_fit >= (FIT_EVERY if is_settled else FIT_EVERY_UNTRUSTED)

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
        record = self._record_of(shape)
        record.judge(ratio, self._model.late_ratio(shape))
        record.add(shape, seconds, ratio)
        if predicted == 0 or _is_tame(ratio):
            self._remember((shape, seconds))
        if (floor_s := self._moved_floor_s(shape, seconds)) is not None:
            self._restart(replace(self._model, chunk_floor_s=floor_s), WINDOW)
            return self._model
        if self._model.is_trusted and not self._deserves_trust:
            self._is_off = True
            if self._has_floor:
                return self._level(self._model, FIT_EVERY_UNTRUSTED)
            self._model = replace(self._model, is_trusted=False)
            return self._model
        return self._refresh() if self._since_refresh >= REFRESH_EVERY else None

    def take_samples(self) -> list[Sample]:
        """Return all samples for a fit, and restart the count of steps until the next one."""
        self._since_fit = 0
        self._is_off = False
        return [sample for bucket in self._buckets.values() for sample in bucket]

    def adopt(self, fitted: CostModel) -> CostModel:
        """Adopt a fit, scaled to the level of the recent steps, and return the model to publish.

        The fit uses samples of any age and gives how costs differ between steps. The recent steps show better
        how fast the machine is right now.
        """
        # Without trust, the machine has changed since the earlier steps.
        num_recent = WINDOW if self._model.is_trusted else FIT_EVERY_UNTRUSTED
        return self._level(replace(fitted, chunk_floor_s=self._model.chunk_floor_s), num_recent)

    def _level(self, model: CostModel, num_recent: int) -> CostModel:
        """Scale a model to the level of the latest steps of each kind, trust it, and return it."""
        steps = (step for record in self._records for step in record.latest(num_recent))
        predictions = (
            (seconds, model.predict(shape)) for shape, seconds in steps if not model.is_at_floor(shape)
        )
        ratios = [seconds / predicted for seconds, predicted in predictions if predicted > 0]
        tame = sorted(ratio for ratio in ratios if _is_tame(ratio))
        level = quantile(tame, 0.5) if len(tame) >= MIN_JUDGED else 1.0
        scaled = replace(model.scaled(level), chunk_floor_s=model.chunk_floor_s, is_trusted=True)
        self._restart(scaled, num_recent)
        return self._model

    @property
    def _has_floor(self) -> bool:
        return self._chunks is not self._steps

    @property
    def _records(self) -> tuple[StepRecord, ...]:
        return (self._steps, self._chunks) if self._has_floor else (self._steps,)

    def _record_of(self, shape: StepShape) -> StepRecord:
        return self._chunks if shape.has_chunk else self._steps

    def _moved_floor_s(self, shape: StepShape, seconds: float) -> float | None:
        """Return the least time of a step with a chunk if it is no longer about what the model says."""
        if not self._shows_floor(shape, seconds):
            return None
        self._at_floor_s.append(seconds)
        if len(self._at_floor_s) < FLOOR_STEPS // 2:
            return None
        found_s = median(self._at_floor_s)
        return None if abs(found_s / self._model.chunk_floor_s - 1) <= MEDIAN_OFF else found_s

    def _shows_floor(self, shape: StepShape, seconds: float) -> bool:
        """True for a step with a chunk whose contents say too little to explain its time.

        A step of long chunks that is late, which may have any reason, is left out.
        """
        if not (self._has_floor and shape.has_chunk):
            return False
        contents_s, floor_s = self._model.above_floor(shape), self._model.chunk_floor_s
        return contents_s <= floor_s or UNEXPLAINED * contents_s < seconds < 2 * UNEXPLAINED * floor_s

    def _restart(self, model: CostModel, num_recent: int) -> None:
        """Judge a model by the latest steps of each kind as if it had been published when they ran."""
        self._model = model
        for record in self._records:
            ratios = []
            for shape, seconds in record.latest(num_recent):
                if (predicted := model.predict(shape)) > 0:
                    ratios.append((shape, seconds, seconds / predicted))
            record.restart(ratios)
        self._model = self._with_bands()
        for ratio in self._steps.ratios:
            self._steps.judge(ratio, self._model.ratio_q95)
        if self._has_floor:
            for ratio in self._chunks.ratios:
                self._chunks.judge(ratio, self._model.of_chunks.q95)
        self._model = replace(self._model, is_trusted=self._deserves_trust)
        self._since_refresh = 0

    def _refresh(self) -> CostModel | None:
        """Update bands and trust, and return the model if it changed."""
        self._since_refresh = 0
        model = replace(self._with_bands(), is_trusted=self._deserves_trust)
        changed = model != self._model
        self._model = model
        return model if changed else None

    def _with_bands(self) -> CostModel:
        band = self._steps.band
        model = self._model if band is None else self._model.with_band(band)
        if self._has_floor and (chunk_band := self._chunks.band) is not None:
            model = replace(model, chunk_band=chunk_band)
        return model

    @property
    def _deserves_trust(self) -> bool:
        verdicts = [record.deserves_trust for record in self._records]
        judged = [verdict for verdict in verdicts if verdict is not None]
        return all(judged) if judged else self._model.is_trusted

    def _remember(self, sample: Sample) -> None:
        shape = sample[0]
        context = int(shape.decode_context + shape.chunk_attention)
        bucket = int(shape.num_tokens).bit_length(), context.bit_length()
        self._buckets.setdefault(bucket, deque(maxlen=PER_BUCKET)).append(sample)


def _is_tame(ratio: float) -> bool:
    return 1 / WILD <= ratio <= WILD


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The judgement on one step by the model that was published before it ran."""

    is_slow: bool
    is_fast: bool
    is_covered: bool


class StepRecord:
    """The latest `WINDOW` steps of one kind, each judged by the model that was published when it ran.

    Steps without a level of their own are as long as the host needs, now more and now less: their median may
    be off.
    """

    def __init__(self, *, has_level: bool = True) -> None:
        self._has_level = has_level
        self._steps: deque[tuple[StepShape, float, float]] = deque(maxlen=WINDOW)
        self._verdicts: deque[_Verdict] = deque(maxlen=WINDOW)
        self._num_slow = self._num_fast = self._num_covered = 0

    def add(self, shape: StepShape, seconds: float, ratio: float) -> None:
        """Add a step that took `ratio` times as long as predicted."""
        self._steps.append((shape, seconds, ratio))

    def judge(self, ratio: float, q95: float) -> None:
        """Judge a step by the quantile that was published; one that is hardly late is covered in any case."""
        if len(self._verdicts) == WINDOW:
            self._count(self._verdicts[0], -1)
        is_slow = ratio > 1 + MEDIAN_OFF
        verdict = _Verdict(is_slow, ratio < 1 - MEDIAN_OFF, ratio <= q95 or not is_slow)
        self._verdicts.append(verdict)
        self._count(verdict, 1)

    def restart(self, steps: Iterable[tuple[StepShape, float, float]]) -> None:
        """Forget all steps and verdicts, and take these steps, unjudged."""
        self._steps.clear()
        self._steps.extend(steps)
        self._verdicts.clear()
        self._num_slow = self._num_fast = self._num_covered = 0

    def latest(self, count: int) -> Sequence[Sample]:
        """Return the latest steps, in their order."""
        return [(shape, seconds) for shape, seconds, _ in self._steps][-count:]

    @property
    def ratios(self) -> list[float]:
        """The ratio of each step."""
        return [ratio for _, _, ratio in self._steps]

    @property
    def band(self) -> Band | None:
        """The quantiles of the ratios; None of too few."""
        return Band.of(self.ratios) if len(self._steps) >= MIN_JUDGED else None

    @property
    def deserves_trust(self) -> bool | None:
        """True if most steps were as predicted and few later than the band; None if too few were judged."""
        judged = len(self._verdicts)
        if judged < MIN_JUDGED:
            return None
        # Counts are enough: the median is above a value exactly when most steps are.
        is_off = self._has_level and max(self._num_slow, self._num_fast) > judged / 2
        return not is_off and self._num_covered >= MIN_COVERED * judged

    def _count(self, verdict: _Verdict, by: int) -> None:
        self._num_slow += by * verdict.is_slow
        self._num_fast += by * verdict.is_fast
        self._num_covered += by * verdict.is_covered
