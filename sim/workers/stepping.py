"""How a simulated worker steps: one step at a time, and decode steps many at once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import numpy as np

from engine.core.batch import Step
from engine.core.turns.simulated_runs import DecodeRuns
from scheduling.cost_model import StepShape
from sim.step_times import LONGEST_STRETCH, StepEnds, Times
from sim.workers.counted_pool import CountedSwap
from sim.workers.outcomes import Outcomes
from sim.workers.step_record import StepRecord

LEAST_WAIT_S = 1e-3
"""However short a policy would wait."""


class Stepping(Protocol):
    """Begins steps, and calls for a turn of the worker whenever another one may begin."""

    @property
    def is_idle(self) -> bool:
        """True if no step is under way."""
        ...

    @property
    def has_turn(self) -> bool:
        """True if news can be taken in, and a step may begin at once."""
        ...

    def heed(self) -> None:
        """Take a turn as soon as possible: there is news that could not be taken in."""
        ...

    def begin(self) -> bool:
        """Begin a step; return False if nothing is to be done now."""
        ...


class SingleSteps:
    """Implements `Stepping` for a worker that computes one step at a time.

    While only decodes run there is nothing to decide until a sequence ends, a report is due, blocks run short
    or a command comes: those steps are taken as one stretch by `runs`. Without `runs`, each step is planned
    and taken as a live worker does.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        record: StepRecord,
        swap: CountedSwap,
        step_ends: StepEnds,
        turn: Callable[[], None],
        runs: DecodeRuns | None,
    ) -> None:
        self._outcomes = outcomes
        self._core = outcomes.core
        self._batch = outcomes.core.batch
        self._clock = outcomes.clock
        self._record = record
        self._swap = swap
        self._step_ends = step_ends
        self._turn = turn
        self._runs = runs
        self._is_stepping = False
        self._number = 0
        """Calls of the clock that are for an earlier wait, step or stretch are void."""
        self._ends: Times | list[float] = []
        self._began = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._is_stepping

    @property
    def has_turn(self) -> bool:
        return not self._is_stepping

    def heed(self) -> None:
        """End the stretch with the step that is under way."""
        if len(self._ends) <= 1:
            return
        count = bisect_left(self._ends, self._clock.now) + 1
        if count < len(self._ends):
            self._ends = self._ends[:count]
            self._number += 1
            self._clock.at(float(self._ends[-1]), self._stretch_done, self._number)

    def begin(self) -> bool:
        self._number += 1
        if not self._core.groups.roster.prefilling:
            if not self._batch.num_rows:
                return False
            if self._runs is not None:
                self._stretch(self._runs)
                return True
        now = self._clock.now
        plan = self._core.plan(now, now)
        if not plan.num_decodes and not plan.chunks:
            if plan.wait_s < math.inf:
                self._clock.at(now + max(plan.wait_s, LEAST_WAIT_S), self._wait_over, self._number)
            return False
        step = self._core.begin(plan)
        self._core.cover(step)
        self._single(step)
        return True

    def _wait_over(self, number: int) -> None:
        if number == self._number and not self._is_stepping:
            self._turn()

    def _single(self, step: Step) -> None:
        """Begin a step that was planned."""
        number, copy_s = self._outcomes.totals.num_steps, self._swap.take_copied_s()
        ends: Times | list[float]
        if step.chunks:
            ends = [self._step_ends.of_mixed(step.shape, number, self._clock.now, copy_s)]
        else:
            context = self._batch.num_context_tokens
            ends = self._step_ends.of_decodes(step.num_decodes, context, number, 1, self._clock.now, copy_s)
        self._begin_steps(ends, lambda number: self._single_done(number, step))

    def _begin_steps(self, ends: Times | list[float], done: Callable[[int], None]) -> None:
        self._is_stepping = True
        self._began = self._clock.now
        self._ends = ends
        self._clock.at(float(ends[-1]), done, self._number)

    def _single_done(self, number: int, step: Step) -> None:
        if number != self._number:
            return
        now, shape = self._clock.now, step.shape
        self._count_steps([now], step.num_decodes, shape.num_tokens - step.num_decodes)
        self._core.join(step)
        self._core.advance(step)
        self._core.mark_written(step)
        self._core.count_tokens(step, now)
        self._outcomes.end_step(step)
        self._steps_over(now, shape, now - self._began)

    def _stretch(self, runs: DecodeRuns) -> None:
        """Begin as many decode steps as are sure to come one after another."""
        reports, size, context = self._outcomes.reports, self._batch.num_rows, self._batch.num_context_tokens
        count = 1
        if not reports.has_news:
            count = runs.num_steps(LONGEST_STRETCH)
        first, copy_s = self._outcomes.totals.num_steps, self._swap.take_copied_s()
        ends = self._step_ends.of_decodes(size, context, first, count, self._clock.now, copy_s)
        # A report that is due ends the stretch.
        self._begin_steps(ends[: bisect_left(ends, reports.due_at) + 1], self._stretch_done)

    def _stretch_done(self, number: int) -> None:
        if number != self._number:
            return
        assert self._runs is not None
        ends = self._ends
        count, end, size = len(ends), float(ends[-1]), self._batch.num_rows
        context = self._batch.num_context_tokens + (count - 1) * size
        shape = StepShape(size, size, context, 0.0, 0, size)
        self._count_steps(ends, size, 0)
        last_step_s = end - (float(ends[-2]) if count > 1 else self._began)
        self._core.end(self._outcomes.finished(self._runs.take(np.asarray(ends))))
        self._outcomes.take_events()
        self._steps_over(end, shape, last_step_s)

    def _steps_over(self, now: float, shape: StepShape, step_s: float) -> None:
        self._outcomes.reports.step_done(now, shape, step_s)
        self._is_stepping = False
        self._turn()

    def _count_steps(self, ends: Times | list[float], num_decodes: int, chunk_tokens: int) -> None:
        """Record steps that are over, before the core counts their tokens."""
        busy_s = float(ends[-1]) - self._began
        self._outcomes.count_steps(self._began, ends, num_decodes, chunk_tokens, busy_s)
        if num_decodes:
            self._record.add(ends, num_decodes)
