"""Figures that admission learns from the requests it admitted.

This is what one router has learnt; the estimators themselves are in `scheduling/admission/learnt.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduling.admission.admission import AdmittedLoad, Spread
from scheduling.admission.class_shares import ClassShares
from scheduling.admission.learnt import FixedTime, LearntRatios, OutputLengths
from scheduling.admission.length_shares import LengthShares
from scheduling.admission.prediction import Prediction
from scheduling.admission.trials import Trials
from scheduling.request import SloClass

TTFT_SCALE = 64_000.0
"""Ratios are bucketed by powers of two from 64 units on; a unit is a millisecond of the prediction."""


@dataclass(slots=True)
class Learnt:
    """Ratios of observed to predicted times, lengths of outputs, and what was admitted lately."""

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
