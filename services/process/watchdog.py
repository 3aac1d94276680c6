"""Ends a process of which a part stands still: its streams break, and its peers go on elsewhere.

A step that hangs in a kernel or a driver holds every sequence of its worker, while heartbeats still leave the
event loop; behind an event loop that hangs, gRPC's own threads still answer pings. Whether a part moves is
asked by a thread of its own, and its patience is counted in looks, not by the clock: a process that was
stopped, or a machine that slept, has not been looked at meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog

from services.process.log import flush_log

log = structlog.get_logger()

EXIT_STALLED = 6
LOOK_S = 0.5


class Watchdog:
    """Calls `on_stall(seconds)`, once, when `turn()` stays the same for `limit_s`; None is idleness.

    Both are called on the watchdog's thread.
    """

    def __init__(
        self,
        turn: Callable[[], int | None],
        limit_s: float,
        on_stall: Callable[[float], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._turn = turn
        self._limit_s = limit_s
        self._on_stall = on_stall
        self._look_s = look_s
        self._seen: int | None = None
        self._same_s = 0.0
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
                if self._stopped.wait(self._look_s):
                    return
                self._look()
            except MemoryError:  # what stands still for want of it is noticed by nobody else
                time.sleep(self._look_s)
            if self._same_s >= self._limit_s:
                self._on_stall(self._same_s)
                return

    def _look(self) -> None:
        turn = self._turn()
        same = turn is not None and turn == self._seen
        self._same_s = self._same_s + self._look_s if same else 0.0
        self._seen = turn


def leave_stalled(what: str, thread_id: int | None, stalled_s: float) -> None:
    """Say where that thread is, and end the process: whatever else would wait for it."""
    try:
        frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001 - the only way to see another thread's stack
        where = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
        log.critical("stalled", what=what, seconds=round(stalled_s, 1), traceback=where)
        flush_log()
    finally:
        os._exit(EXIT_STALLED)
