"""The event loop of a service: its threads, its tasks, its standstills and its watchdog."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from services.process.standstill import Standstills
from services.process.threads import started_executor
from services.process.watchdog import Watchdog, leave_stalled

NUM_THREADS = 4
"""For blocking work: name lookups, fits, waits for other threads."""
STALL_S = 20.0
"""Even on a crowded machine, nothing occupies a loop for longer than a few seconds."""


def start_threads() -> None:
    """Start the threads that `asyncio.to_thread` and the running loop use."""
    asyncio.get_running_loop().set_default_executor(started_executor(NUM_THREADS, "aside"))


def freeze_garbage() -> None:
    """Exclude objects made at start-up from collection: a pass over them stops all threads for long."""
    gc.collect()
    gc.freeze()


def measure_loop(registry: CollectorRegistry) -> Standstills:
    """Add metrics of the running loop's tasks and standstills to `registry`; return the running meter."""
    count_tasks(registry)
    standstills = Standstills(registry)
    standstills.start()
    return standstills


def count_tasks(registry: CollectorRegistry) -> None:
    """Add `baton_event_loop_tasks`, the running loop's tasks: it grows at rest if something leaks."""
    loop = asyncio.get_running_loop()
    gauge = Gauge(
        "event_loop_tasks",
        "Tasks of the event loop; grows at rest where something leaks",
        namespace="baton",
        registry=registry,
    )
    gauge.set_function(lambda: len(asyncio.all_tasks(loop)))


def watch_loop() -> Watchdog:
    """Start a watchdog that ends the process when the running loop stands still for `STALL_S`."""
    turns = _Turns(asyncio.get_running_loop())
    watchdog = Watchdog(turns.request, STALL_S, partial(leave_stalled, "event_loop", threading.get_ident()))
    watchdog.start()
    return watchdog


class _Turns:
    """Counts the turns of a loop that another thread requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0

    def request(self) -> int:
        """Request a turn from another thread; return the number of turns so far."""
        self._loop.call_soon_threadsafe(self._turn)
        return self._count

    def _turn(self) -> None:
        self._count += 1
