"""How many workers a fleet needs: as many as the load fills now, and as keep the promises of its usual load.

The usual load is the mean of the middle half of the last 15 minutes, which a short burst or pause does not
move. The fewest workers are found that keep the wanted share of promises under it, if it were steady. The
time that they have to spare serves a burst until new workers have started. During a burst, the work of the
last minute or two has to fit in, without time to spare for another burst.

Both are pure functions. What they cost depends on the number of slots and on the logarithm of the answer,
not on how many requests, waiting or served, or workers there are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.cost.cost_model import StepShape
from scheduling.placement import Placement
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
from scheduling.stages import step_limit_s
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
    USUAL = "usual"
    """The promises under the usual load."""
    RECENT = "recent"
    """The work of the last minute or two."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The promises that a fleet has to keep. Raises ValueError naming the field."""

    goodput: float = 0.99
    """The share of promises, under the usual load."""

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
    return _needed(slots, MINUTE, _prompts_of, lambda mean: _prompts(mean, worker, goal))


def decode_needed(slots: Sequence[Slot], worker: WorkerModel, placement: Placement, goal: Goal) -> Need:
    """Return the decode workers that are enough; where prompts are computed by decode workers alone, for
    these as well.
    """
    if is_idle(slots):
        return NONE
    if placement is Placement.AGGREGATED:
        return _needed(slots, MINUTE, _prompts_of, lambda mean: _mixed(mean, worker, goal))
    # Running sequences follow a change of the load by minutes, so a longer mean is soon enough, and steadier.
    return _needed(slots, 2 * MINUTE, _sequences_of, lambda mean: _sequences(mean, worker, goal))


def is_idle(slots: Sequence[Slot]) -> bool:
    """Return True if nothing has been asked for lately."""
    return not any(slot.prompts for slot in slots[-IDLE:])


Judge = tuple[float, Callable[[int], bool]]
"""How many workers the load fills, and whether a number of workers keeps the promises."""


def _needed(
    slots: Sequence[Slot], recent: int, load_of: Callable[[Slot], float], judge: Callable[[Slot], Judge]
) -> Need:
    filled, _ = judge(mean_slot(slots[-recent:]))
    load, holds = judge(usual(slots, load_of))
    enough = fewest(math.ceil(load), MOST_WORKERS, holds) or MOST_WORKERS
    busy = min(MOST_WORKERS, math.ceil(filled))
    return Need(busy, Why.RECENT) if busy > enough else Need(enough, Why.USUAL)


def usual(slots: Sequence[Slot], load_of: Callable[[Slot], float]) -> Slot:
    """Return the mean slot of the middle half of the minutes, by load; of all slots in the first minute."""
    begins = range(len(slots) % MINUTE, len(slots), MINUTE)
    minutes = sorted((mean_slot(slots[begin : begin + MINUTE]) for begin in begins), key=load_of)
    out = len(minutes) // 4
    return mean_slot(minutes[out : len(minutes) - out] or slots)


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
