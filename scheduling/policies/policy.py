"""What a policy decides, besides its name: the step, the order, and what is promised."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from scheduling.placement import Placement
from scheduling.step import StepPlan, StepView


class Order(enum.Enum):
    """Who goes first in the fleet's queue."""

    ARRIVAL = "arrival"
    DUE = "due"
    """By class, then by when the first token is due."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to serve, run unmodified by routers, workers and the simulator."""

    name: str
    plan: Callable[[StepView], StepPlan]
    order: Order
    promises: bool
    """Admits by SLO and sheds; otherwise everyone is taken, and no latency is promised."""
    binds_at_arrival: bool
    """To the worker with the least work, as the paper does; otherwise when a worker has capacity."""
    reserves_maximum: bool
    """A sequence starts only when its longest output fits; otherwise when its expected one does."""
    placement: Placement = Placement.DISAGGREGATED
    """Where prompts are computed unless another is named. A baseline uses the prefill workers it is
    given; without any it computes prompts where they decode, as in its paper.
    """
