"""How many workers would have kept the promises of the last minutes, and will while new ones start.

The recorded slots are replayed against more and fewer workers until the fewest are found that keep the
wanted share. A worker that is wanted now serves only once it has started, so the last minute is replayed a
second time, grown by what the load has grown lately: whatever needs more workers counts.

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
from scheduling.scaling.replay import (
    WorkerModel,
    first_tokens,
    mean_sequence,
    prompt_speed,
    seats_found,
    step_s,
    tightest_pace_s,
    work_s,
)
from scheduling.scaling.search import fewest
from scheduling.value import value

MOST_WORKERS = 4096
LATEST = round(60 / SLOT_S)
"""The slots of the last minute."""
MOST_GROWTH = 2.0
CLEAR = 2.5
"""A trend counts if it is this many times its standard error."""


class Why(enum.Enum):
    """The reason for a number of workers."""

    IDLE = "idle"
    """Nothing was asked for."""
    RECENT = "recent"
    """The promises of the last minutes."""
    GROWTH = "growth"
    """The load as it will be once a new worker has started."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The promises that a fleet has to keep. Raises ValueError naming the field."""

    goodput: float = 0.99
    """The share of promises."""
    window_s: float = 300.0
    """How far back promises count."""
    startup_s: float = 120.0
    """How long a new worker takes until it serves."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.goodput < 1:
            raise ValueError(f"goodput is {self.goodput}; accepted: from 0.5, below 1")
        for name, least in (("window_s", 60.0), ("startup_s", 0.0)):
            seconds = getattr(self, name)
            if not least <= seconds <= 900:
                raise ValueError(f"{name} is {seconds}; accepted: {least:g} to 900")


@value
class Need:
    """The workers of one role that are wanted."""

    workers: int
    why: Why


NONE = Need(0, Why.IDLE)


def prefill_needed(slots: Sequence[Slot], worker: WorkerModel, placement: Placement, goal: Goal) -> Need:
    """Return the fewest prefill workers that would have been enough; none where decode workers compute all
    prompts.

    `slots` are whole ones, oldest first. Where decode workers compute some prompts, prefill workers are still
    counted for all of them, since decode workers have no time for prompts when it matters.
    """
    recent = _recent(slots, goal)
    if not recent or placement is Placement.AGGREGATED:
        return NONE
    return _fewest(recent, goal, _prompts_of, lambda part: _prompts(part, worker, goal))


def decode_needed(slots: Sequence[Slot], worker: WorkerModel, placement: Placement, goal: Goal) -> Need:
    """Return the fewest decode workers that would have been enough; where prompts are computed by decode
    workers alone, for these as well.
    """
    recent = _recent(slots, goal)
    if not recent:
        return NONE
    if placement is Placement.AGGREGATED:
        return _fewest(recent, goal, _prompts_of, lambda part: _mixed(part, worker, goal))
    return _fewest(recent, goal, _sequences_of, lambda part: _sequences(part, recent, worker, goal))


def _recent(slots: Sequence[Slot], goal: Goal) -> Sequence[Slot]:
    """Return the slots of the window; none if nothing was asked in it."""
    recent = slots[-max(1, round(goal.window_s / SLOT_S)) :]
    return recent if any(slot.prompts for slot in recent) else ()


Judge = tuple[int, Callable[[int], bool]]
"""Where to begin, and whether a number of workers is enough."""


def _fewest(
    recent: Sequence[Slot],
    goal: Goal,
    load_of: Callable[[Slot], float],
    judge: Callable[[Sequence[Slot]], Judge],
) -> Need:
    now = _enough(judge(recent))
    by = growth([load_of(slot) for slot in recent], goal.startup_s)
    if by <= 1:
        return Need(now, Why.RECENT)
    later = _enough(judge([_grown(slot, by) for slot in recent[-LATEST:]]))
    return Need(later, Why.GROWTH) if later > now else Need(now, Why.RECENT)


def _enough(judge: Judge) -> int:
    first, holds = judge
    return fewest(first, MOST_WORKERS, holds) or MOST_WORKERS


def _prompts_of(slot: Slot) -> float:
    return slot.prompt_tokens


def _sequences_of(slot: Slot) -> float:
    return slot.sequences


def _prompts(slots: Sequence[Slot], worker: WorkerModel, goal: Goal) -> Judge:
    speed = prompt_speed(worker)
    whole = total(slots)
    work = work_s(whole.prompt_tokens, whole.prompt_squares, speed)
    first = math.ceil(work / (SLOT_S * len(slots)))
    kept = first_tokens(slots, speed)
    return first, lambda num: kept(num) >= goal.goodput


def _sequences(slots: Sequence[Slot], recent: Sequence[Slot], worker: WorkerModel, goal: Goal) -> Judge:
    whole = total(recent)
    mean = mean_sequence(whole, worker, tightest_pace_s(whole, 1 - goal.goodput))
    lifetime_s = mean.output_tokens * step_s(worker, mean, mean.seats)
    alive = sum(slot.sequences for slot in slots) / (SLOT_S * len(slots)) * lifetime_s
    first = math.ceil(alive / mean.seats)
    kept = seats_found(slots, worker, mean)
    return first, lambda num: kept(num) >= goal.goodput


def _mixed(slots: Sequence[Slot], worker: WorkerModel, goal: Goal) -> Judge:
    whole = total(slots)
    pace_s = tightest_pace_s(whole, 1 - goal.goodput)
    work = work_s(whole.prompt_tokens, whole.prompt_squares, prompt_speed(worker)) / (SLOT_S * len(slots))
    limited = replace(worker, prompt_limit_s=min(worker.prompt_limit_s, pace_s))

    def holds(num: int) -> bool:
        share = 1 - work / num
        if share <= 0:
            return False
        mean = mean_sequence(whole, worker, pace_s, share)
        if seats_found(slots, worker, mean, share)(num) < goal.goodput:
            return False
        lifetime_s = mean.output_tokens * step_s(worker, mean, mean.seats) / share
        alive = min(mean.seats, whole.sequences / (SLOT_S * len(slots)) * lifetime_s / num)
        speed = prompt_speed(limited, alive, mean.context_tokens)
        return first_tokens(slots, speed)(num) >= goal.goodput

    return math.ceil(2 * work), holds


def growth(loads: Sequence[float], ahead_s: float) -> float:
    """Return how many times the present load is expected after `ahead_s`, from 1 to `MOST_GROWTH`.

    It is a straight line through the load of as many slots as are ahead, and at least a minute's; 1 if the
    line does not clearly rise. The slope counts less its standard error.
    """
    count = min(len(loads), max(LATEST, round(ahead_s / SLOT_S)))
    last = loads[-count:]
    if count < LATEST or ahead_s <= 0:
        return 1.0
    middle, mean = (count - 1) / 2, sum(last) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * load for place, load in enumerate(last)) / spread
    rest = sum((load - mean - slope * (place - middle)) ** 2 for place, load in enumerate(last))
    error = math.sqrt(rest / (count - 2) / spread)
    present = mean + slope * middle
    if slope <= CLEAR * error or present <= 0:
        return 1.0
    return min(MOST_GROWTH, 1 + (slope - error) * ahead_s / SLOT_S / present)


def _grown(slot: Slot, by: float) -> Slot:
    return of_row([number * by for number in slot.row])


def typical(workers: Sequence[WorkerModel]) -> WorkerModel | None:
    """Return the worker in the middle by the cost of a full step; None if none has measured its steps."""
    known = [worker for worker in workers if any(worker.cost.coefficients)]
    ordered = sorted(known, key=lambda worker: _full_step_s(worker) / worker.token_budget)
    return ordered[len(ordered) // 2] if ordered else None


def _full_step_s(worker: WorkerModel) -> float:
    return worker.cost.predict(StepShape.of(0, 0, [(0, worker.token_budget)]))
