"""The decision of Kubernetes' HorizontalPodAutoscaler (`autoscaling/v2`), with its defaults.

Every 15 s it computes how many replicas bring the metric to its target, and leaves things as they are within
a tolerance of a tenth. Replicas at most double, or grow by four, in 15 s. They shrink to the most that it has
wanted within the stabilisation window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SYNC_S = 15.0
TOLERANCE = 0.1
STABILISATION_S = 300.0
MOST_ADDED = 4
MOST_FACTOR = 2


def for_average_value(total: float, target: float, replicas: int) -> int:
    """Return the replicas for an external metric of type AverageValue: its total is divided among them.

    Replicas that have not started count as well.
    """
    if replicas and abs(1 - total / (target * replicas)) <= TOLERANCE:
        return replicas
    return math.ceil(total / target)


def for_pods(values: Sequence[float], unready: int, target: float) -> int:
    """Return the replicas for a metric of each pod, from the values of the ready ones.

    Unready ones count as idle when more are wanted, and as being at the target when fewer are. Nothing
    changes where that would turn the direction.
    """
    current = len(values) + unready
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if unready:
        filled = sum(values) + (unready * target if ratio < 1 else 0.0)
        with_all = filled / current / target
        if (ratio - 1) * (with_all - 1) < 0:
            return current
        ratio = with_all
    return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * current)


@dataclass(slots=True)
class Autoscaler:
    """One HorizontalPodAutoscaler: its limits and its memory."""

    least: int
    most: int
    stabilisation_s: float = STABILISATION_S
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, proposed: int, replicas: int, now: float) -> int:
        """Return the replicas from now on; called once every `SYNC_S`."""
        self._wanted.append((now, proposed))
        while self._wanted[0][0] <= now - self.stabilisation_s:
            self._wanted.popleft()
        wanted = proposed
        if proposed < replicas:
            wanted = min(replicas, max(number for _, number in self._wanted))
        highest = max(replicas + MOST_ADDED, replicas * MOST_FACTOR)
        return min(self.most, max(self.least, min(wanted, highest)))
