"""How many workers a fleet needs: the fewest that keep the promises of the present load.

The present load is the mean of the time over which the load has been steady (`steady_span`): 15 minutes where
nothing has changed, and less than one where a burst has begun. The fewest workers are found that keep the
wanted share of promises under it, if it went on. The time that they have to spare serves a burst until new
workers have started. A pause takes nothing: where the last minutes were quieter than three of four, the load
of these counts.

Both are pure functions. What they cost depends on the number of slots and on the logarithm of the answer,
not on how many requests, waiting or served, or workers there are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.cost_model import StepShape
from scheduling.placement import Placement
from scheduling.prediction import step_limit_s
from scheduling.scaling.demand import SLOT_S, Slot, of_row, total
from scheduling.scaling.search import fewest
from scheduling.scaling.steady import (
    WorkerModel,
    alive,
    first_tokens,
    mean_sequence,
    prompt_speed,
    seats_found,
    step_s,
    tightest_pace_s,
    work_s,
)
from scheduling.scaling.steady_span import steady_span
from scheduling.value import value

MOST_WORKERS = 4096
MINUTE = round(60 / SLOT_S)
"""The slots of a minute."""
IDLE = round(300 / SLOT_S)
"""The slots without a request after which a fleet is idle."""


class Why(enum.Enum):
    """The reason for a number of workers."""

    IDLE = "idle"
    """Nothing was asked for."""
    STEADY = "steady"
    """The load of all the time that is recorded."""
    CHANGED = "changed"
    """The load since it has changed."""
    PAUSE = "pause"
    """The load of before, as less came for a while."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The promises that a fleet has to keep. Raises ValueError naming the field."""

    goodput: float = 0.99
    """The share of promises, under the present load."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.goodput < 1:
            raise ValueError(f"goodput is {self.goodput}; accepted: from 0.5, below 1")


@value
class Need:
    """The workers of one role that are wanted."""

    workers: int
    why: Why


NONE = Need(0, Why.IDLE)


def prefill_needed(slots: Sequence[Slot], worker: WorkerModel, placement: Placement, goal: Goal) -> Need:
    """Return the prefill workers that are enough; none where decode workers compute all prompts.

    `slots` are whole ones, oldest first. Where decode workers compute some prompts, prefill workers are still
    counted for all of them, since decode workers have no time for prompts when it matters.
    """
    if is_idle(slots) or placement is Placement.AGGREGATED:
        return NONE
    return _needed(slots, _prompts_of, lambda mean: _prompts(mean, worker, goal))


def decode_needed(slots: Sequence[Slot], worker: WorkerModel, placement: Placement, goal: Goal) -> Need:
    """Return the decode workers that are enough; where prompts are computed by decode workers alone, for
    these as well.
    """
    if is_idle(slots):
        return NONE
    if placement is Placement.AGGREGATED:
        return _needed(slots, _prompts_of, lambda mean: _mixed(mean, worker, goal))
    return _needed(slots, _sequences_of, lambda mean: _sequences(mean, worker, goal))


def is_idle(slots: Sequence[Slot]) -> bool:
    """Return True if nothing has been asked for lately."""
    return not any(slot.prompts for slot in slots[-IDLE:])


Judge = tuple[float, Callable[[int], bool]]
"""How many workers the load fills, and whether a number of workers keeps the promises."""


def _needed(slots: Sequence[Slot], load_of: Callable[[Slot], float], judge: Callable[[Slot], Judge]) -> Need:
    span = steady_span(slots)
    now = _fewest(judge(mean_slot(slots[-span:])))
    before = _fewest(judge(exceeded(slots, load_of)))
    if before > now:
        return Need(before, Why.PAUSE)
    return Need(now, Why.STEADY if span == len(slots) else Why.CHANGED)


def _fewest(judge: Judge) -> int:
    filled, holds = judge
    return fewest(math.ceil(filled), MOST_WORKERS, holds) or MOST_WORKERS


def exceeded(slots: Sequence[Slot], load_of: Callable[[Slot], float]) -> Slot:
    """Return the mean slot of the minute whose load three of four minutes exceed."""
    begins = range(len(slots) % MINUTE, len(slots), MINUTE)
    minutes = sorted((mean_slot(slots[begin : begin + MINUTE]) for begin in begins), key=load_of)
    return minutes[len(minutes) // 4] if minutes else mean_slot(slots)


def mean_slot(slots: Sequence[Slot]) -> Slot:
    """Return the mean of slots."""
    return of_row([number / len(slots) for number in total(slots).row])


def _prompts_of(slot: Slot) -> float:
    return slot.prompt_tokens


def _sequences_of(slot: Slot) -> float:
    return slot.sequences


def _prompts(mean: Slot, worker: WorkerModel, goal: Goal) -> Judge:
    speed = prompt_speed(worker)
    kept = first_tokens(mean, speed)
    filled = work_s(mean.prompt_tokens, mean.prompt_squares, speed) / SLOT_S
    return filled, lambda num: kept(num) >= goal.goodput


def _sequences(mean: Slot, worker: WorkerModel, goal: Goal) -> Judge:
    each = mean_sequence(mean, worker, tightest_pace_s(mean, 1 - goal.goodput))
    lifetime_s = each.output_tokens * step_s(worker, each, each.seats)
    kept = seats_found(mean, worker, each)
    return mean.sequences / SLOT_S * lifetime_s / each.seats, lambda num: kept(num) >= goal.goodput


def _mixed(mean: Slot, worker: WorkerModel, goal: Goal) -> Judge:
    pace_s = tightest_pace_s(mean, 1 - goal.goodput)
    work = work_s(mean.prompt_tokens, mean.prompt_squares, prompt_speed(worker)) / SLOT_S
    filled, _ = _sequences(mean, worker, goal)
    longest_s = step_limit_s(pace_s, worker.num_stages)
    limited = replace(worker, prompt_limit_s=min(worker.prompt_limit_s, longest_s))

    def holds(num: int) -> bool:
        share = 1 - work / num
        if share <= 0:
            return False
        each = mean_sequence(mean, worker, pace_s, share)
        if seats_found(mean, worker, each, share)(num) < goal.goodput:
            return False
        decodes = alive(mean, worker, each, num, share) / num
        speed = prompt_speed(limited, decodes, each.context_tokens)
        return first_tokens(mean, speed)(num) >= goal.goodput

    return work + filled, holds


def typical(workers: Sequence[WorkerModel]) -> WorkerModel | None:
    """Return the worker in the middle by the cost of a full step; None if none has measured its steps."""
    known = [worker for worker in workers if any(worker.cost.coefficients)]
    ordered = sorted(known, key=_token_s)
    return ordered[len(ordered) // 2] if ordered else None


def _token_s(worker: WorkerModel) -> float:
    full_step_s = worker.cost.predict(StepShape.of(0, 0, [(0, worker.token_budget)]))
    return full_step_s / (worker.token_budget * worker.num_stages)
