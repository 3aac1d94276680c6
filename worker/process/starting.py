"""Reports the progress of a worker's start: to its launcher, to its log, and to readers of `progress`.

    STARTING prefill_worker prefill-0 done=340 total=803 phase=reading weights      a line of stdout

A line comes with each new phase, and every second in which the count moved, or the process computed or read.
So silence means that the worker stands still, even in a phase that cannot count its own progress.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.starting import Phase
from runtime.process.reports import report

log = structlog.get_logger()

PULSE_S = 1.0
LOG_S = 5.0
BUSY_SHARE = 0.02
"""Share of the time since the last line spent computing. Less comes from the event loop and this pulse."""
_STATM = Path("/proc/self/statm")
_IO = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress within a phase: `done` of `total` bytes or steps; both are 0 if unknown."""

    phase: Phase
    done: int = 0
    total: int = 0


class Start:
    """A start under way, from its construction until `end`. A thread of its own prints the lines."""

    def __init__(self, kind: str, worker_id: str, others_cpu_s: Callable[[], float] = lambda: 0.0) -> None:
        """`others_cpu_s` returns the seconds that processes which this one waits for have computed."""
        self._others_cpu_s = others_cpu_s
        self._prefix = f"STARTING {kind} {worker_id}"
        self._progress = Progress(Phase.IMPORTING)
        self._unprinted = deque([self._progress])
        """Progress at the beginning of each phase, not printed yet."""
        self._mapped_before = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="starting", daemon=True)
        self._thread.start()

    def report(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Implements `engine.starting.OnProgress`; never waits for a reader of stdout."""
        with self._changed:
            if phase is Phase.READING and self._progress.phase is not phase:
                self._mapped_before = _mapped_bytes()
            is_new = phase is not self._progress.phase
            self._progress = Progress(phase, done, total)
            if is_new:
                self._unprinted.append(self._progress)
                self._changed.notify()

    @property
    def progress(self) -> Progress:
        progress = self._progress
        if progress.phase is not Phase.READING:
            return progress
        # Weights are mapped, not read: the part of their files that is in memory has been used.
        mapped = max(0, _mapped_bytes() - self._mapped_before)
        return Progress(progress.phase, min(progress.total, mapped), progress.total)

    def end(self) -> None:
        """End the lines: no further one is printed, unless stdout has been stuck for a second."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(PULSE_S)

    def _run(self) -> None:
        printed, logged_at, activity = self._progress, 0.0, _Activity(self._others_cpu_s)
        while True:
            with self._changed:
                if not self._unprinted and not self._is_over:
                    self._changed.wait(PULSE_S)
                if self._is_over and not self._unprinted:
                    return
                begun = self._unprinted.popleft() if self._unprinted else None
            now = begun or self.progress
            if begun is None and now == printed and not activity.has_moved():
                continue
            printed, activity = now, _Activity(self._others_cpu_s)
            # Stdout may be closed.
            with contextlib.suppress(OSError, ValueError):
                report(f"{self._prefix} done={now.done} total={now.total} phase={now.phase}")
            if begun is not None or time.monotonic() - logged_at >= LOG_S:
                logged_at = time.monotonic()
                log.info("starting", phase=now.phase.value, done=now.done, total=now.total)


class _Activity:
    """Watch whether this process has computed or read, or others computed, since this was made."""

    def __init__(self, others_cpu_s: Callable[[], float]) -> None:
        self._since = time.monotonic()
        self._others_cpu_s = others_cpu_s
        self._cpu_s = self._computed_s()
        self._read_bytes = _read_bytes()

    def has_moved(self) -> bool:
        computed_s = self._computed_s() - self._cpu_s
        is_busy = computed_s > BUSY_SHARE * (time.monotonic() - self._since)
        return is_busy or _read_bytes() != self._read_bytes

    def _computed_s(self) -> float:
        return time.process_time() + self._others_cpu_s()


def _mapped_bytes() -> int:
    """Return the bytes of files and shared memory that are mapped and present."""
    return int(_STATM.read_text(encoding="ascii").split()[2]) * resource.getpagesize()


def _read_bytes() -> int:
    """Return the bytes read from storage, mapped files included; 0 if the kernel does not say."""
    with contextlib.suppress(OSError):
        for line in _IO.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "read_bytes":
                return int(value)
    return 0
