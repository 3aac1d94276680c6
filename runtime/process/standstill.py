"""Measure how long an event loop stands still at a time, and publish it as metrics.

Code that does not yield, or that keeps the loop's thread from a core or from the interpreter lock, delays
everything that is due. A timer with a short period comes late by that delay, less one period at most. CPU
time that the process used meanwhile, on all threads, is its own part; the rest was spent waiting for a core.
"""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge

PERIOD_S = 0.02
"""A standstill may be this much longer than measured. The ticks take 0.4 % of a core at most."""
RECENT_S = 30.0
"""The longest recent standstill is taken over the last one to two of these periods."""
LONG_S = 0.05
"""Standstills of this length or more are counted, because clients notice them."""


class Standstills:
    """Measures the running loop from `start` to `stop`; its metrics are in `registry`."""

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
        self.record(now - self._due_at, time.process_time() - self._cpu_s, now)
        self.start()

    def record(self, late_s: float, cpu_s: float, now: float) -> None:
        """Record how late a tick came, and how much CPU time the process used meanwhile."""
        self._all.record(late_s, now)
        self._own.record(min(late_s, cpu_s), now)
        if late_s >= LONG_S:
            self._num_long.inc()


class _Longest:
    """The longest time since the start, and over the last one to two times `RECENT_S`."""

    def __init__(self, registry: CollectorRegistry, name: str, documentation: str) -> None:
        self._longest_s = self._current_s = self._previous_s = 0.0
        self._period_ends_at = time.monotonic() + RECENT_S
        gauge = Gauge(
            name,
            f"{documentation}; since: start, recently",
            ["since"],
            namespace="baton",
            registry=registry,
        )
        gauge.labels("start").set_function(lambda: self._longest_s)
        gauge.labels("recently").set_function(lambda: max(self._current_s, self._previous_s))

    def record(self, seconds: float, now: float) -> None:
        if now >= self._period_ends_at:
            is_recent = now < self._period_ends_at + RECENT_S
            self._previous_s, self._current_s = self._current_s if is_recent else 0.0, 0.0
            self._period_ends_at = now + RECENT_S
        self._current_s = max(self._current_s, seconds)
        self._longest_s = max(self._longest_s, seconds)
