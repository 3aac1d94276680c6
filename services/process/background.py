"""Writes text from a thread of its own: whoever hands it over never waits, whatever the file does.

A disk can be full, a pipe can have no reader. What waits is bounded; beyond that text is refused.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path


class BackgroundWriter:
    """Writes to a file descriptor, in order. `failed` hears of each write that went wrong, on the thread."""

    def __init__(self, fd: int, max_waiting_bytes: int, failed: Callable[[OSError], None]) -> None:
        self._fd = fd
        self._max_waiting_bytes = max_waiting_bytes
        self._failed = failed
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        # Daemonic: a write that is stuck must not keep the process.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def write(self, text: str) -> bool:
        """Take a text; False when too much waits already, and it is refused."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(data) > self._max_waiting_bytes:
                return False
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written, at most so long; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, at most so long, and stop; whether all was written. The descriptor stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                data = self._waiting.popleft()
            try:
                _write_all(self._fd, data)
            except OSError as error:
                self._failed(error)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()


def open_unblocked(path: Path) -> int:
    """A descriptor of a new or emptied file. A pipe that nobody reads is an `OSError`, instead of a wait."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
    os.set_blocking(fd, True)
    return fd


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
