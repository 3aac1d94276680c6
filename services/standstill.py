"""How long an event loop stands still at a time: measured on the loop itself, read as metrics.

Whatever runs on a loop without giving way, or keeps the loop's thread from a core or from the interpreter
lock, delays all that is due by then. A timer of a short period is late by that much, less one period at most.
"""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge

PERIOD_S = 0.01
"""What a standstill may be longer than measured. A tick takes some microseconds."""
RECENT_S = 30.0
"""The recent longest one is of the last one to two of these."""
LONG_S = 0.05
"""Standstills of this length are counted: clients see them."""


class Standstills:
    """Looks at the running loop from `start` to `stop`, and adds what it sees to `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._longest_s = 0.0
        self._now_s = 0.0
        self._before_s = 0.0
        self._turns_at = time.monotonic() + RECENT_S
        longest = Gauge(
            "event_loop_standstill_seconds",
            "Longest time that the event loop stood still, since the start and recently",
            ["since"],
            namespace="baton",
            registry=registry,
        )
        longest.labels("start").set_function(lambda: self._longest_s)
        longest.labels("recently").set_function(lambda: max(self._now_s, self._before_s))
        self._num_long = Counter(
            "event_loop_long_standstills",
            f"Times that the event loop stood still for {LONG_S * 1000:.0f} ms or more",
            namespace="baton",
            registry=registry,
        )

    def start(self) -> None:
        self._due_at = time.monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = time.monotonic()
        self.take(now - self._due_at, now)
        self.start()

    def take(self, late_s: float, now: float) -> None:
        """Take in that a tick came so late."""
        if now >= self._turns_at:
            was_before = now < self._turns_at + RECENT_S
            self._before_s, self._now_s = self._now_s if was_before else 0.0, 0.0
            self._turns_at = now + RECENT_S
        self._now_s = max(self._now_s, late_s)
        self._longest_s = max(self._longest_s, late_s)
        if late_s >= LONG_S:
            self._num_long.inc()
