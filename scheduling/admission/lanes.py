"""Predict the first token of a prompt that joins the queue, on the worker that would have it soonest.

Each worker that computes prompts is a lane, which is free once the work bound to it is done. Requests ahead
in the queue go to the lane that is free first, so the queue fills the lanes like water, up to one level:

    Σ rate · max(0, level - wait) = tokens ahead        first token = min over lanes of max(wait, level) + own

One sum over the fleet, all bound work by all rates, would give a long prompt the waits of busy workers, while
another worker idles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from scheduling.value import value


@value
class Lane:
    """A worker that computes prompts, as one more prompt finds it. Times are seconds from now."""

    key: str
    wait_s: float
    """Until the work bound to it is computed."""
    rate: float
    """Prompt tokens per second, above 0."""


def level_s(lanes: Sequence[Lane], ahead_tokens: int) -> float:
    """Return when the queue's `ahead_tokens` are computed, if each goes to the lane that is free first."""
    if ahead_tokens <= 0:
        return 0.0
    rate, bound = 0.0, 0.0
    for lane in sorted(lanes, key=attrgetter("wait_s")):
        if rate > 0 and ahead_tokens + bound <= lane.wait_s * rate:
            break
        rate += lane.rate
        bound += lane.rate * lane.wait_s
    return (ahead_tokens + bound) / rate


def soonest(
    lanes: Sequence[Lane], ahead_tokens: int, own_s: Callable[[str], float], least_own_s: float
) -> tuple[float, float]:
    """Return the wait and the own time of the lane with the earliest first token. There must be a lane.

    `own_s` returns what the prompt itself takes on a lane. It is called only for lanes that could still be
    the earliest if the prompt took no more than `least_own_s` there.
    """
    level = level_s(lanes, ahead_tokens)
    best_wait_s = best_own_s = float("inf")
    for lane in sorted(lanes, key=attrgetter("wait_s")):
        wait_s = max(lane.wait_s, level)
        if wait_s + least_own_s >= best_wait_s + best_own_s:
            break
        found_s = own_s(lane.key)
        if wait_s + found_s < best_wait_s + best_own_s:
            best_wait_s, best_own_s = wait_s, found_s
    return best_wait_s, best_own_s
