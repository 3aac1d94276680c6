"""How long simulated steps take: what the cost model predicts, times a ratio; and when they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduling.cost_model import Band, CostModel, StepShape
from sim.delays import RecordedLine

Times = NDArray[np.float64]

_DRAWN_AT_ONCE = 4096
LONGEST_STRETCH = 64
"""Steps that are taken at once, at most."""
_PLACES = np.arange(LONGEST_STRETCH)


class StepTimes(Protocol):
    """One worker's ratios of actual to predicted."""

    def ratio(self, step: int, now: float, *, is_mixed: bool) -> float:
        """Return the ratio of the worker's step `step`, which begins now; a mixed one has prompts too."""
        ...

    def ratios(self, first: int, count: int) -> NDArray[np.float64] | None:
        """Return the ratios of that many steps to come; None if they cannot be known beforehand."""
        ...


class DrawnRatios:
    """Drawn anew for every step between the quantiles of the cost model; always 1 without noise."""

    def __init__(self, cost: CostModel, noise: float, seed: Sequence[int]) -> None:
        self._noise = noise
        self._band = Band(cost.ratio_q10, cost.ratio_q50, cost.ratio_q95)
        self._chunk_band = cost.chunk_band
        self._random = np.random.default_rng(list(seed))
        self._drawn = np.ones(0)
        self._as_list: list[float] = []
        self._of_chunks: list[float] = self._as_list if cost.chunk_band is None else []
        """The ratios of steps with a chunk."""

    def ratio(self, step: int, now: float, *, is_mixed: bool) -> float:
        """The same for the same step, whenever it is asked for."""
        if self._noise == 0.0:
            return 1.0
        if step >= len(self._drawn):
            self._draw(step + 1)
        return (self._of_chunks if is_mixed else self._as_list)[step]

    def ratios(self, first: int, count: int) -> NDArray[np.float64]:
        """Return `ratio` of each step."""
        if first + count > len(self._drawn):
            self._draw(first + count)
        return self._drawn[first : first + count]

    def _draw(self, at_least: int) -> None:
        more = max(at_least - len(self._drawn), _DRAWN_AT_ONCE, len(self._drawn) // 2)
        if self._noise == 0.0:
            self._drawn = np.concatenate((self._drawn, np.ones(more)))
            return
        shares = self._random.random(more)
        drawn = self._within(self._band, shares)
        self._drawn = np.concatenate((self._drawn, drawn))
        self._as_list += drawn.tolist()
        if self._chunk_band is not None:
            self._of_chunks += self._within(self._chunk_band, shares).tolist()

    def _within(self, band: Band, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn = np.interp(shares, (0.1, 0.5, 0.95), (band.q10, band.q50, band.q95))
        return np.asarray(1.0 + self._noise * (drawn - 1.0))


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a live worker, on the clock of its trace."""

    at_s: float
    shape: StepShape
    step_s: float


class RecordedRatios:
    """Ratios of a live worker's steps, one after the other.

    Steps with prompts and steps of decodes alone are two lines.
    """

    def __init__(self, steps: Iterable[RecordedStep], cost: CostModel) -> None:
        kinds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for step in steps:
            predicted_s = cost.predict(step.shape)
            if not (step.step_s > 0 and predicted_s > 0):
                raise ValueError(
                    f"step_s is {step.step_s}, predicted {predicted_s}, at_s {step.at_s}; "
                    "accepted: seconds above 0, by the record and by the profile"
                )
            is_mixed = step.shape.num_tokens > step.shape.num_decodes
            kinds[is_mixed].append((step.at_s, step.step_s / predicted_s))
        self._kinds = {is_mixed: RecordedLine(ratios) for is_mixed, ratios in kinds.items()}

    def ratio(self, step: int, now: float, *, is_mixed: bool) -> float:
        """Return the ratio of the next recorded step of this kind, or of the other if none was recorded."""
        line = self._kinds[is_mixed] or self._kinds[not is_mixed]
        return line.take(now) if line else 1.0

    def ratios(self, first: int, count: int) -> None:
        """Return None: a ratio depends on when its step begins, so later ones are unknown."""


class StepEnds:
    """When the steps of one worker end, on the simulation's clock, in seconds."""

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

        `context` tokens are attended to in the first one. Where the ratios of later steps are unknown, only
        the end of the first one is returned. The formula is `CostModel.predict`'s, over an array of steps.
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
