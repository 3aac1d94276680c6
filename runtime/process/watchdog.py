"""End a process that is partly stuck: its streams break, and its peers continue elsewhere.

A step that hangs in a kernel or a driver holds every sequence of its worker, while the event loop still sends
heartbeats. If the event loop hangs, gRPC's own threads still answer pings. A separate thread therefore checks
whether the part makes progress. It measures time by its own checks, not by the clock, so that a process that
was stopped or a machine that slept is not taken for stuck.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog

from runtime.process.log import flush_log

log = structlog.get_logger()

EXIT_STALLED = 6
CHECK_PERIOD_S = 0.5


class Watchdog:
    """Calls `on_stall(seconds)` once, when `progress()` has stayed the same for `limit_s`.

    `progress()` returns None while the part is idle. Both are called on the watchdog's thread.
    """

    def __init__(
        self,
        progress: Callable[[], int | None],
        limit_s: float,
        on_stall: Callable[[float], None],
        check_period_s: float = CHECK_PERIOD_S,
    ) -> None:
        self._progress = progress
        self._limit_s = limit_s
        self._on_stall = on_stall
        self._check_period_s = check_period_s
        self._last_progress: int | None = None
        self._stalled_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            try:
                if self._stopped.wait(self._check_period_s):
                    return
                self._check()
            except MemoryError:  # nobody else would notice a part that is stuck for lack of memory
                time.sleep(self._check_period_s)
            if self._stalled_s >= self._limit_s:
                self._on_stall(self._stalled_s)
                return

    def _check(self) -> None:
        progress = self._progress()
        is_stalled = progress is not None and progress == self._last_progress
        self._stalled_s = self._stalled_s + self._check_period_s if is_stalled else 0.0
        self._last_progress = progress


def leave_stalled(what: str, thread_id: int | None, stalled_s: float) -> None:
    """Log where the thread is, and end the process without waiting for the thread."""
    try:
        frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001 - the only way to see another thread's stack
        where = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
        log.critical("stalled", what=what, seconds=round(stalled_s, 1), traceback=where)
        flush_log()
    finally:
        os._exit(EXIT_STALLED)
