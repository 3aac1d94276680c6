"""The event loop of a service: its threads, its tasks, how long it stands still, and what ends it then."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from services.process.standstill import Standstills
from services.process.threads import started_executor
from services.process.watchdog import Watchdog, leave_stalled

NUM_THREADS = 4
"""For what would block: names that are looked up, fits, waits for other threads."""
STALL_S = 20.0
"""The longest that something on a loop takes, a crowded machine and all, is a few seconds."""


def start_threads() -> None:
    """Those of `asyncio.to_thread` and of the running loop's own needs."""
    asyncio.get_running_loop().set_default_executor(started_executor(NUM_THREADS, "aside"))


def measure_loop(registry: CollectorRegistry) -> Standstills:
    """Add the running loop's tasks to `registry`, and how long it stands still, until that is stopped."""
    count_tasks(registry)
    standstills = Standstills(registry)
    standstills.start()
    return standstills


def count_tasks(registry: CollectorRegistry) -> None:
    """Adds `baton_event_loop_tasks` of the running loop, which grows at rest where something leaks."""
    loop = asyncio.get_running_loop()
    gauge = Gauge(
        "event_loop_tasks",
        "Tasks of the event loop; grows at rest where something leaks",
        namespace="baton",
        registry=registry,
    )
    gauge.set_function(lambda: len(asyncio.all_tasks(loop)))


def watch_loop() -> Watchdog:
    """A started watchdog that ends the process when the running loop stands still for `STALL_S`."""
    turns = _Turns(asyncio.get_running_loop())
    watchdog = Watchdog(turns.ask, STALL_S, partial(leave_stalled, "event_loop", threading.get_ident()))
    watchdog.start()
    return watchdog


class _Turns:
    """Counts turns of a loop, one for each time that it was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0

    def ask(self) -> int:
        """How many there were; from another thread."""
        self._loop.call_soon_threadsafe(self._turn)
        return self._count

    def _turn(self) -> None:
        self._count += 1
