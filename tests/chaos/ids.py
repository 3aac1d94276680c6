"""Request ids that come again: soon after their stream has ended, or when their router has forgotten them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container
from dataclasses import dataclass

from router.core.model.state import CoreConfig
from tests.chaos.streams import Course, Outcome

SHARE = 0.15
"""The share of streams with an id that was used before."""
MOST = 512
"""Ids that are kept, the oldest being dropped."""
FORGOTTEN_S = CoreConfig("any").retention_s + 5.0
"""A router remembers for almost this long what has ended."""


@dataclass(frozen=True, slots=True)
class Used:
    """A stream that has ended, whose id may come again."""

    course: Course
    ended_at: float
    is_forgotten: bool = False


class UsedIds:
    """Streams that ended as they should; half of those that come again are old enough to be forgotten."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: deque[Used] = deque(maxlen=MOST)

    def add(self, course: Course, now: float) -> None:
        """A stream has ended."""
        if course.outcome is Outcome.SAME:
            self._used.append(Used(course, now))

    def draw(self, now: float, running: Container[str]) -> Used | None:
        """Return a stream whose id comes again now, or None for a new request."""
        if self._rng.random() >= SHARE:
            return None
        wants_forgotten = self._rng.random() < 0.5
        fit = [
            used
            for used in self._used
            if (now - used.ended_at > FORGOTTEN_S) == wants_forgotten
            and used.course.request_id not in running
        ]
        if not fit:
            return None
        chosen = self._rng.choice(fit)
        self._used.remove(chosen)
        return Used(chosen.course, chosen.ended_at, wants_forgotten)
