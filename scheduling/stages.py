"""Workers whose layers are split over pipeline stages: the steps in flight, and the time between two of them.

A step passes the stages in turn, and takes an equal share of its time in each. A sequence is in one step at a
time, so it has its next step only after a whole pass. What is here holds for one stage as well, whose steps
follow one another.
"""

from __future__ import annotations


def num_micro_batches(num_stages: int) -> int:
    """Return how many steps are in flight at most.

    One more than the stages of a pipeline: where steps are not equally long, one of them waits for its stage
    instead of a stage for it.
    """
    return 1 if num_stages == 1 else num_stages + 1


def round_s(step_s: float, num_stages: int, num_in_flight: int | None = None) -> float:
    """Return the time from one step of a sequence to its next, where all steps take `step_s`.

    The first stage takes in a step after the other, so a sequence waits for a whole pass, or for all steps in
    flight to enter, whichever is longer. None: as many as there may be.
    """
    if num_stages == 1:
        return step_s
    most = num_micro_batches(num_stages)
    num_in_flight = most if num_in_flight is None else min(most, num_in_flight)
    return step_s * max(1.0, num_in_flight / num_stages)


def step_limit_s(pace_s: float, num_stages: int) -> float:
    """Return the longest step in a full pipeline that keeps a pace, the inverse of `round_s`."""
    return pace_s * (num_stages / num_micro_batches(num_stages))


def share(number: int, num_stages: int) -> int:
    """Return a micro-batch's share of running sequences, or of their context, rounded up."""
    return -(-number // num_micro_batches(num_stages))
