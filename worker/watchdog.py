"""Ends a worker whose step does not: its streams break, and its routers go on elsewhere.

A step that hangs in a kernel or a driver holds every sequence of its worker, while heartbeats still leave the
event loop. Whether it moves is asked by a thread of its own, and its patience is counted in looks, not by the
clock: a process that was stopped, or a machine that slept, has not been looked at meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable

import structlog

from scheduling.cost_model import Sample
from services.log import flush_log
from worker.errors import EXIT_STALLED

log = structlog.get_logger()

LEAST_LIMIT_S = 30.0
LONGEST_STEPS = 50
"""Of the longest measured at the start, so many may one step last: a crowded machine is no stalled one."""
LOOK_S = 0.5


def stall_limit_s(samples: Iterable[Sample]) -> float:
    """How long a step may last, from the steps that were measured."""
    longest_s = max((seconds for _, seconds in samples), default=0.0)
    return max(LEAST_LIMIT_S, LONGEST_STEPS * longest_s)


class Watchdog:
    """Calls `on_stall(seconds)`, once, when `turn()` stays the same for `limit_s`; None is idleness."""

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
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        seen: int | None = None
        same_s = 0.0
        while not self._stopped.wait(self._look_s):
            turn = self._turn()
            same_s = same_s + self._look_s if turn is not None and turn == seen else 0.0
            seen = turn
            if same_s >= self._limit_s:
                self._on_stall(same_s)
                return


def leave_stalled(thread_id: int | None, stalled_s: float) -> None:
    """Say where the step thread is, and end the process: whatever else would wait for that thread."""
    frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001 - the only way to see another thread's stack
    where = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
    log.critical("step_stalled", seconds=round(stalled_s, 1), traceback=where)
    flush_log()
    os._exit(EXIT_STALLED)
