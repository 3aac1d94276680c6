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
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for kind in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            runners[kind].forward(batches[kind])
            took[kind].append((time.process_time() - began) * 1e3)
    ratios = [after / before for before, after in zip(*took, strict=True)]
    return statistics.median(took[0]), statistics.median(took[1]), statistics.median(ratios)
