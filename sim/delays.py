"""How long messages between the parts of a simulated fleet take: the same each time, or as recorded."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

ASTRAY_S = 0.25
"""How far the next recorded value may be from when the simulation has its next."""
KINDS = ("receive", "enqueue", "grant", "settle", "command")
"""A router's work before its core receives a request, three calls to the store, and the way of a command to a
worker's steps."""

Delay = Callable[[float], float]
"""From when a message is sent to the seconds that it takes."""


@dataclass(frozen=True, slots=True)
class RecordedDelay:
    """One message of a live fleet, sent at `at_s` on the clock of its trace."""

    at_s: float
    lasted_s: float


class RecordedLine:
    """Values of a live fleet in the order of their times. Each is taken once: its host's moods are played.

    Whoever asked for the closest in time alone would meet long ones more often than they were, since more
    times are close to them. Simulation and record stay together, for neither goes astray by more than
    `ASTRAY_S`.
    """

    def __init__(self, values: Iterable[tuple[float, float]] = ()) -> None:
        ordered = sorted(values, key=lambda value: value[0])
        self._times = [time for time, _ in ordered]
        self._values = [value for _, value in ordered]
        self._next = 0

    def __bool__(self) -> bool:
        return bool(self._times)

    def take(self, now: float) -> float:
        """Return the next value, unless that was at quite another time; then the closest."""
        times = self._times
        if not (self._next < len(times) and abs(times[self._next] - now) <= ASTRAY_S):
            at = bisect.bisect_left(times, now)
            around = range(max(0, at - 1), min(len(times), at + 1))
            self._next = min(around, key=lambda i: abs(times[i] - now))
        self._next += 1
        return self._values[self._next - 1]


def delay_of(kind: str, recorded: Mapping[str, Iterable[RecordedDelay]], otherwise_s: float) -> Delay:
    """Return the recorded delays of a kind, one after the other, or a constant if none was recorded."""
    line = RecordedLine((delay.at_s, delay.lasted_s) for delay in recorded.get(kind, ()))
    return line.take if line else lambda _: otherwise_s
