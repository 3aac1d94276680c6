"""When the steps of one simulated worker end: what they cost, times their ratios."""

from __future__ import annotations

import numpy as np

from scheduling.cost.cost_model import CostModel, StepShape
from sim.workers.step_record import Times
from sim.workers.step_times import StepTimes

LONGEST_STRETCH = 512
"""Steps that are taken at once, at most."""
_PLACES = np.arange(LONGEST_STRETCH)


class StepEnds:
    """On the simulation's clock, in seconds."""

    def __init__(self, cost: CostModel, step_times: StepTimes) -> None:
        self._cost = cost
        self._c0, self._c1, self._c3, self._c4, _, _ = cost.coefficients
        self._step_times = step_times

    def of_mixed(self, shape: StepShape, number: int, now: float, copy_s: float) -> float:
        """Return the end of step `number`, which is planned and begins now, after copies of `copy_s`."""
        ratio = self._step_times.ratio(number, now, is_mixed=shape.num_tokens > shape.num_decodes)
        return now + (self._cost.predict(shape) * ratio + copy_s)

    def of_decodes(
        self, size: int, context: int, first: int, count: int, now: float, copy_s: float
    ) -> Times | list[float]:
        """Return the ends of `count` steps from number `first` on; `size` sequences decode in each.

        `context` tokens are attended to in the first one. It is the only one answered where the ratios of
        later ones cannot be known beforehand.
        """
        head = self._c0 + self._c1 * size + self._c3 * max(0.0, size - self._cost.knee_tokens)
        ratios = self._step_times.ratios(first, count) if count > 1 else None
        if ratios is None:
            ratio = self._step_times.ratio(first, now, is_mixed=False)
            return [now + ((head + self._c4 * context) * ratio + copy_s)]
        contexts = context + size * _PLACES[:count]
        lasts = (head + self._c4 * contexts) * ratios
        lasts[0] += copy_s
        lasts[0] += now
        return np.add.accumulate(lasts)
