"""Run real steps on a worker's engine without a fleet, and record their shapes and durations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.decodes import decode, fixed_length, run_all
from engine.core.commands import Decode
from engine.core.report import StepReport
from scheduling.cost_model import Sample
from worker.engine.engine import Engine

VOCAB = 500
"""Token ids are below this, which every model's vocabulary exceeds."""
ARRIVALS = (0,) * 8 + (1, 1, 1, 2, 8)
"""The number of requests that arrive between two steps, each as likely as the others."""


class StepRecorder:
    """Runs requests through an engine's loop on this thread, as a worker's step thread does."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._loop = engine.loop
        self._rng = random.Random(seed)

    def varied(self, num_requests: int, longest_prompt: int, longest_output: int) -> list[Sample]:
        """Run requests of lognormal lengths that arrive at random, sometimes in bursts."""
        return self._run(self._arrivals(num_requests, longest_prompt, longest_output))

    def repeated(self, prompts: Sequence[int], num_outputs: int) -> list[Sample]:
        """Run prompts, in one step if they fit its budget, then their decode steps until all have ended."""
        return self._run(iter([[self._request(length, num_outputs) for length in prompts]]))

    def _arrivals(self, count: int, longest_prompt: int, longest_output: int) -> Iterator[list[Decode]]:
        while count:
            coming = min(count, self._rng.choice(ARRIVALS))
            count -= coming
            yield [
                self._request(
                    self._length(longest_prompt / 6, 0.93, longest_prompt),
                    self._length(longest_output / 3, 0.55, longest_output),
                )
                for _ in range(coming)
            ]

    def _length(self, median: float, sigma: float, longest: int) -> int:
        return min(longest, max(1, int(median * self._rng.lognormvariate(0, sigma))))

    def _request(self, num_prompt: int, num_outputs: int) -> Decode:
        prompt = tuple(self._rng.randrange(VOCAB) for _ in range(num_prompt))
        return decode(prompt, fixed_length(num_outputs))

    def _run(self, arrivals: Iterator[list[Decode]]) -> list[Sample]:
        """Run until all requests have ended."""
        samples: list[Sample] = []

        def record(report: StepReport) -> None:
            if report.shape is not None:
                samples.append((report.shape, report.step_seconds))

        run_all(self._loop, arrivals, record)
        return samples
