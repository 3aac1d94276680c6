"""Says how far the recording of decode steps is."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

INTERVAL_S = 2.0


class RecordingLog:
    """Implements `engine.decode_graphs.Progress`: a line every INTERVAL_S, and one at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._told_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        now_s = self._clock()
        if done == 0:
            self._began_s = self._told_s = now_s
        elif done == total:
            log.info("decodes_recorded", sizes=total, seconds=round(now_s - self._began_s, 1))
        elif now_s - self._told_s >= INTERVAL_S:
            self._told_s = now_s
            log.info("recording_decodes", done=done, sizes=total)
