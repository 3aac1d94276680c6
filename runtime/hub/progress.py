"""How far a download is: bytes, rate and rest."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_WINDOW_S = 10.0
"""The rate is that of the last seconds."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """The state of a download: `done` of `total` bytes; both are 0 if unknown."""

    phase: str = "asking the hub"
    done: int = 0
    total: int = 0


class Rate:
    """The bytes per second of the last seconds. `now_s` is a clock."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, done: int) -> None:
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # a part that was not as it should be is fetched again
        self._seen.append((now_s, done))
        while self._seen[-1][0] - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float:
        """The rate; 0 if nothing has come yet."""
        if not self._seen:
            return 0.0
        (began, at_first), (now, done) = self._seen[0], self._seen[-1]
        return (done - at_first) / (now - began) if now > began else 0.0


def in_words(state: Fetching, bytes_per_s: float) -> str:
    """Return the phase with rate and rest: `downloading at 24 MB/s, 19 s left`."""
    left = state.total - state.done
    if bytes_per_s <= 0 or left <= 0:
        return state.phase
    return f"{state.phase} at {_rate(bytes_per_s)}, {_duration(left / bytes_per_s)} left"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 9.5e6 else f"{bytes_per_s / 1e6:.1f} MB/s"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
