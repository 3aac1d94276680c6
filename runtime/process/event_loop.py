"""The event loop of a service: its threads, its tasks, its standstills and its watchdog."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from runtime.process.standstill import Standstills
from runtime.process.threads import started_executor
from runtime.process.watchdog import Watchdog, leave_stalled

NUM_THREADS = 4
"""For blocking work: name lookups, fits, waits for other threads."""
STALL_S = 20.0
"""Even on a crowded machine, nothing occupies a loop for longer than a few seconds."""


def start_threads() -> None:
    """Start the threads that `asyncio.to_thread` and the running loop use."""
    asyncio.get_running_loop().set_default_executor(started_executor(NUM_THREADS, "aside"))


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import large packages without collections, which take a fifth of the time. Later ones skip them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
    loop = asyncio.get_running_loop()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    def request_turn() -> int:
        loop.call_soon_threadsafe(turn)
        return turns

    watchdog = Watchdog(request_turn, STALL_S, partial(leave_stalled, "event_loop", threading.get_ident()))
    watchdog.start()
    return watchdog
