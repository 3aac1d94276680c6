"""How long an event loop stands still at a time: measured on the loop itself, read as metrics.

Code that runs on a loop without yielding, or that keeps the loop's thread from a core or from the interpreter
lock, delays everything that is due. A timer of a short period is late by that much, less one period at most.
The time that the process computed meanwhile, on all of its threads, is its own part; for the rest it waited
for a core that others used.
"""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge

PERIOD_S = 0.02
"""A standstill may be this much longer than measured. The ticks take 0.4 % of a core at most."""
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
        self._cpu_s = 0.0
        self._all = _Longest(
            registry, "event_loop_standstill_seconds", "Longest time that the event loop stood still"
        )
        self._own = _Longest(
            registry,
            "event_loop_own_standstill_seconds",
            "Longest time that the event loop stood still while its own process computed",
        )
        self._num_long = Counter(
            "event_loop_long_standstills",
            f"Times that the event loop stood still for {LONG_S * 1000:.0f} ms or more",
            namespace="baton",
            registry=registry,
        )

    def start(self) -> None:
        self._cpu_s = time.process_time()
        self._due_at = time.monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = time.monotonic()
        self.take(now - self._due_at, time.process_time() - self._cpu_s, now)
        self.start()

    def take(self, late_s: float, cpu_s: float, now: float) -> None:
        """Record how late a tick came, and how long the process had computed meanwhile."""
        self._all.take(late_s, now)
        self._own.take(min(late_s, cpu_s), now)
        if late_s >= LONG_S:
            self._num_long.inc()


class _Longest:
    """The longest time of all, and of the last one to two times `RECENT_S`."""

    def __init__(self, registry: CollectorRegistry, name: str, documentation: str) -> None:
        self._longest_s = self._now_s = self._before_s = 0.0
        self._turns_at = time.monotonic() + RECENT_S
        gauge = Gauge(
            name,
            f"{documentation}; since: start, recently",
            ["since"],
            namespace="baton",
            registry=registry,
        )
        gauge.labels("start").set_function(lambda: self._longest_s)
        gauge.labels("recently").set_function(lambda: max(self._now_s, self._before_s))

    def take(self, seconds: float, now: float) -> None:
        if now >= self._turns_at:
            was_before = now < self._turns_at + RECENT_S
            self._before_s, self._now_s = self._now_s if was_before else 0.0, 0.0
            self._turns_at = now + RECENT_S
        self._now_s = max(self._now_s, seconds)
        self._longest_s = max(self._longest_s, seconds)
