"""Write text from a separate thread, so that callers never wait for a full disk or an unread pipe.

The waiting text is bounded; beyond that, text is refused.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path


class BackgroundWriter:
    """Writes to a file descriptor, in order. Calls `failed` on its thread for each write that fails."""

    def __init__(self, fd: int, max_waiting_bytes: int, failed: Callable[[OSError], None]) -> None:
        self._fd = fd
        self._max_waiting_bytes = max_waiting_bytes
        self._failed = failed
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a stuck write must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def write(self, text: str) -> bool:
        """Queue a text. Return False if too much waits already and the text is refused."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(data) > self._max_waiting_bytes:
                return False
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until everything is written; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits for at most `timeout_s`, and stop. Return whether all was written.

        The descriptor stays open.
        """
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
    """Create or empty a file and return its descriptor. A regular one is for this user alone.

    Raises `OSError` for a pipe without a reader, and for a file of another user.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o600)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, 0o600)  # one that was there already
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
