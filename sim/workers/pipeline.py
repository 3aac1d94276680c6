"""How a simulated worker with several pipeline stages steps, and how long its stages are idle.

Each stage computes an equal share of the layers, so a step takes an equal share of its time in each of them,
and passes them in turn. A stage serves one micro-batch at a time, in the order of their launch. Passing
activations on takes no time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Step
from engine.core.sequence import Phase
from scheduling.prediction import num_micro_batches
from sim.bubbles import PipelineTimes
from sim.step_times import StepEnds
from sim.workers.counted_pool import CountedSwap
from sim.workers.outcomes import Outcomes
from sim.workers.step_record import StepRecord
from sim.workers.stepping import LEAST_WAIT_S


class Stages:
    """The stages of one worker, in seconds of the simulation's clock."""

    def __init__(self, num_stages: int) -> None:
        self._free_at = np.zeros(num_stages)
        self._begins: list[NDArray[np.float64]] = []
        self._ends: list[NDArray[np.float64]] = []
        self._opens: list[bool] = []

    @property
    def first_free_at(self) -> float:
        """When the first stage is done with what it has."""
        return float(self._free_at[0])

    def enter(self, now: float, step_s: float, *, opens: bool) -> float:
        """Let a step of `step_s` in all into the first stage, which is free; return when it has left the
        last one.
        """
        stage_s = step_s / len(self._free_at)
        begins, at = np.empty(len(self._free_at)), now
        for stage, free_at in enumerate(self._free_at.tolist()):
            begins[stage] = max(at, free_at)
            at = float(begins[stage]) + stage_s
        self._free_at = begins + stage_s
        self._begins.append(begins)
        self._ends.append(self._free_at)
        self._opens.append(opens)
        return float(self._free_at[-1])

    def times(self, token_gaps: Sequence[tuple[float, float]]) -> PipelineTimes:
        """Return the times of all steps so far, with the gaps of `PipelineTimes`."""
        shape = (len(self._begins), len(self._free_at))
        return PipelineTimes(
            np.array(self._begins).reshape(shape),
            np.array(self._ends).reshape(shape),
            np.array(self._opens, dtype=np.bool_),
            np.array(token_gaps).reshape(-1, 2),
        )


@dataclass(slots=True)
class _Flight:
    """A step in flight."""

    step: Step
    began: float
    stage_s: float
    """Its time in each stage."""


class PipelinedSteps:
    """Implements `sim.workers.stepping.Stepping` for a worker with several stages.

    It launches steps as a live step loop does: what a step draws is counted at its launch, and known when it
    is over.
    """

    def __init__(
        self,
        num_stages: int,
        outcomes: Outcomes,
        record: StepRecord,
        swap: CountedSwap,
        step_ends: StepEnds,
        turn: Callable[[], None],
    ) -> None:
        self._num_stages = num_stages
        self._most_in_flight = num_micro_batches(num_stages)
        self._outcomes = outcomes
        self._core = outcomes.core
        self._clock = outcomes.clock
        self._record = record
        self._swap = swap
        self._step_ends = step_ends
        self._turn = turn
        self._stages = Stages(num_stages)
        self._flights: deque[_Flight] = deque()
        self._num_launched = 0
        self._was_without_work = True
        self._wait_number = 0
        """Calls of the clock that are for an earlier wait are void."""
        self._gaps: list[tuple[float, float]] = []

    @property
    def is_idle(self) -> bool:
        return not self._flights

    @property
    def has_turn(self) -> bool:
        """True if the first stage is free and a micro-batch is left.

        Where running choices are short of blocks, the steps in flight are waited for before any is preempted.
        """
        is_free = len(self._flights) < self._most_in_flight and self._stages.first_free_at <= self._clock.now
        return is_free and not (self._flights and self._core.groups.is_short_of_blocks)

    def times(self) -> PipelineTimes:
        """Return the times of all steps that were launched."""
        return self._stages.times(self._gaps)

    def heed(self) -> None:
        """The turn comes when the first stage is free, or a step is over."""

    def begin(self) -> bool:
        self._wait_number += 1
        now = self._clock.now
        if not self._outcomes.sequences:
            self._was_without_work = True
        plan = self._core.plan(now, now)
        if plan.num_decodes or plan.chunks:
            self._launch(self._core.begin(plan))
            return True
        if plan.wait_s < math.inf:
            self._clock.at(now + max(plan.wait_s, LEAST_WAIT_S), self._wait_over, self._wait_number)
        return False

    def _wait_over(self, number: int) -> None:
        if number == self._wait_number and self.has_turn:
            self._turn()

    def _launch(self, step: Step) -> None:
        now, number = self._clock.now, self._num_launched
        self._core.cover(step)
        self._core.join(step)
        self._core.advance(step)
        self._core.tables.hold_back(step.held)
        step_s = self._step_ends.of_mixed(step.shape, number, now, self._swap.take_copied_s()) - now
        end = self._stages.enter(now, step_s, opens=self._was_without_work)
        self._was_without_work = False
        self._num_launched += 1
        self._flights.append(_Flight(step, now, step_s / self._num_stages))
        self._clock.at(self._stages.first_free_at, self._first_stage_free)
        self._clock.at(end, self._step_done)

    def _first_stage_free(self) -> None:
        if self.has_turn:
            self._turn()

    def _step_done(self) -> None:
        """The step that was launched first of those in flight is over."""
        flight, now = self._flights.popleft(), self._clock.now
        step, shape = flight.step, flight.step.shape
        if not self._flights:
            self._core.tables.hold_back(None)
        self._core.mark_written(step)
        self._core.count_tokens(step, now, is_latest=False)
        chunk_tokens = shape.num_tokens - step.num_decodes
        self._outcomes.count_steps(flight.began, [now], step.num_decodes, chunk_tokens, flight.stage_s)
        if step.num_decodes:
            self._record.add([now], step.num_decodes)
        self._add_times(step, now)
        self._outcomes.end_step(step)
        self._core.groups.room.give_back(step.held)
        self._outcomes.reports.step_done(now, shape, now - flight.began)
        if self.has_turn:
            self._turn()

    def _add_times(self, step: Step, now: float) -> None:
        """Record the times of tokens that decodes have brought."""
        for choice in step.choices[: step.num_decodes]:
            if choice.group.phase is not Phase.ENDED:
                sequence = self._outcomes.sequences[choice.group.handle]
                self._gaps.append((sequence.last_at, now - sequence.last_at))
                sequence.add_token(now)
