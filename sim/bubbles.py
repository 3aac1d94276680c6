"""How long the stages of a pipeline are idle between their steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """When each step of a worker was in each stage; seconds on the simulation's clock."""

    begins: NDArray[np.float64]
    """[number of steps, number of stages]"""
    ends: NDArray[np.float64]
    """[number of steps, number of stages]"""
    opens: NDArray[np.bool_]
    """[number of steps], True for a step that begins a busy period."""
    token_gaps: NDArray[np.float64]
    """[number of gaps, 2]: when each gap between two tokens of a sequence began, and how long it was."""

    def bubble_share(self, begin_s: float = 0.0, end_s: float = math.inf) -> float:
        """Return the share of the stages' time that bubbles take, by the steps launched in a span of time.

        A busy period of a worker begins with a step that finds it without any request before, and lasts for
        as long as it has one. A bubble is time in a busy period in which a stage is idle between two steps
        that follow each other. Stages that are not reached yet when a period begins, or not any more when it
        ends, do not count as idle. The share is of all time between the first and the last step of the
        periods, summed over the stages: Agrawal et al., "SARATHI: Efficient LLM Inference by Piggybacking
        Decodes with Chunked Prefills", 2023, calls these the bubbles of unequal micro-batches.
        """
        chosen = (self.begins[:, 0] >= begin_s) & (self.begins[:, 0] < end_s)
        begins, ends, opens = self.begins[chosen], self.ends[chosen], self.opens[chosen]
        if not len(begins):
            return 0.0
        idle_s = float((begins[1:] - ends[:-1])[~opens[1:]].sum())
        busy_s = float((ends - begins).sum())
        return idle_s / (idle_s + busy_s)
