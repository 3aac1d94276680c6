"""The type of a policy: how it fills steps, in which order it serves, and whether it makes promises."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduling.placement import SCORES, Placement, Score
from scheduling.step import StepPlan, StepView


class Order(enum.Enum):
    """The order of the fleet's queue."""

    ARRIVAL = "arrival"
    DUE = "due"
    """By class, then by when the first token is due."""
    DUE_AND_SHORT = "due_and_short"
    """By when the first token is due plus what its prompt takes."""
    SHORT = "short"
    """By what the prompt takes."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to serve, run unmodified by routers, workers and the simulator.

    Most baselines are what the fields are by default.
    """

    name: str
    plan: Callable[[StepView], StepPlan]
    order: Order = Order.ARRIVAL
    promises: bool = False
    """It admits by SLO and sheds load; otherwise it accepts every request and promises no latency."""
    takes_at_risk: bool = False
    """It takes whom it would refuse, without a promise, as if all requests allowed it."""
    late_go_last: bool = False
    """A request whose turn comes too late for its TTFT goes behind all others, of which some are in time."""
    binds_at_arrival: bool = True
    """A request is bound at arrival to the worker with the least work, as in the papers; otherwise when a
    worker has capacity."""
    reserves_maximum: bool = False
    """A sequence starts only if its longest output fits; otherwise if its expected output does."""
    cuts_steps: bool = False
    """Steps last as long as the running decodes' paces allow; otherwise they are filled to the budget."""
    scores: Sequence[Score] = SCORES
    """How decode workers with room for a request are compared."""
    placement: Placement = Placement.DISAGGREGATED
    """Where prompts are computed by default. A baseline uses the prefill workers it is given; without any it
    computes prompts where they decode, as in its paper.
    """
