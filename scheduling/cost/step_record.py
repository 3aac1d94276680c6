"""The recent steps of one kind, and how well a cost model predicted them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduling.cost_model import Band, Sample, StepShape

WINDOW = 256
"""The number of recent steps that band and trust depend on."""
MIN_JUDGED = 32
MEDIAN_OFF = 0.07
MIN_COVERED = 0.85


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
