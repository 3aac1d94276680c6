"""Real steps of a worker's own engine, without a fleet around it: their shapes, and what they took."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from engine.core.commands import Command, Decode
from engine.core.report import StepReport
from scheduling.cost.cost_model import Sample
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules
from worker.engine import Engine

VOCAB = 500
"""Token ids are drawn below it: every model has so many."""
ARRIVALS = (0,) * 8 + (1, 1, 1, 2, 8)
"""How many requests come between two steps, each as likely as the others."""


class StepRecorder:
    """Runs requests through an engine's loop on this thread, as a worker's step thread would."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._loop = engine.loop
        self._rng = random.Random(seed)
        self._handles = itertools.count(1)

    def varied(self, num_requests: int, longest_prompt: int, longest_output: int) -> list[Sample]:
        """Requests of lognormal lengths that come at random, a burst now and then."""
        return self._run(self._arrivals(num_requests, longest_prompt, longest_output))

    def repeated(self, prompts: Sequence[int], num_outputs: int) -> list[Sample]:
        """The prompts, as one step if they fit its budget, then their decode steps until all have ended."""
        return self._run(iter([[self._request(length, num_outputs) for length in prompts]]))

    def _arrivals(self, count: int, longest_prompt: int, longest_output: int) -> Iterator[list[Command]]:
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

    def _request(self, num_prompt: int, num_outputs: int) -> Command:
        handle = next(self._handles)
        prompt = tuple(self._rng.randrange(VOCAB) for _ in range(num_prompt))
        stop = StopRules(max_tokens=num_outputs, ignore_eos=True)
        fence = Fence("benchmark", str(handle), 0, 0, 0, "", "")
        return Decode(SequenceSpec(handle, fence, prompt, (), (0,), SamplingParams(temperature=0.0), stop))

    def _run(self, arrivals: Iterator[list[Command]]) -> list[Sample]:
        """Until everything that arrives has ended."""
        samples: list[Sample] = []
        is_over = False

        def drain(timeout_s: float) -> list[Command]:
            nonlocal is_over
            coming = next(arrivals, None)
            while coming == [] and timeout_s > 0:
                coming = next(arrivals, None)
            is_over = coming is None and timeout_s > 0
            return coming or []

        def emit(report: StepReport) -> None:
            assert not report.failures, report.failures
            if report.shape is not None:
                samples.append((report.shape, report.step_seconds))

        self._loop.run(drain, emit, lambda: is_over)
        return samples
