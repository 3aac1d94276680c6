"""Two engines that compute the same steps, taking turns.

Times are CPU times, which depend less on other load of the machine.
"""

from __future__ import annotations

import statistics
import time

from engine.calibration.grid import Step
from engine.calibration.sweep import make_batch
from engine.execution.model_runner import ModelRunner


def compare(runners: tuple[ModelRunner, ModelRunner], step: Step, rounds: int) -> tuple[float, float, float]:
    """Return the median milliseconds of both, and the median of their ratios.

    In each round both compute the step one after the other, in alternating order.
    """
    batches = [make_batch(runner, step) for runner in runners]
    for runner, batch in zip(runners, batches, strict=True):
        runner.forward(batch)
    times_ms: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for kind in (0, 1) if number % 2 else (1, 0):
            start_s = time.process_time()
            runners[kind].forward(batches[kind])
            times_ms[kind].append((time.process_time() - start_s) * 1e3)
    ratios = [after / before for before, after in zip(*times_ms, strict=True)]
    return statistics.median(times_ms[0]), statistics.median(times_ms[1]), statistics.median(ratios)
