"""Structured logs on stderr: one JSON object per line, or coloured lines. Prompts are never logged.

Logging never waits and never fails: a line that cannot be written is lost. Once there is room again, a line
reports how many were lost. A thread writes, so that callers never wait for a full disk or an unread pipe; the
text that waits for it is bounded, and what is beyond that is refused. Recordings are written in the same way.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO, cast

import structlog

MAX_WAITING_BYTES = 1 << 20
"""Lines beyond this are lost."""
FLUSH_TIMEOUT_S = 1.0
"""A process that ends waits this long for its lines to be written."""
GATHER_S = 0.05
"""The thread rests for this long after a write. Where there are many texts, each wake-up costs the process
more than what it writes, so one writes all that has come meanwhile.
"""


class Lines:
    """A text stream that never blocks, even if its descriptor does."""

    def __init__(self, fd: int) -> None:
        self._writer = BackgroundWriter(fd, MAX_WAITING_BYTES, self._failed)
        self._num_lost = self._num_reported = 0

    def write(self, text: str) -> int:
        """Write whole lines, or lose them."""
        if self._num_lost > self._num_reported:
            num_lost = self._num_lost
            if self._writer.write(json.dumps({"event": "log_lines_lost", "so_far": num_lost}) + "\n"):
                self._num_reported = num_lost
        if not self._writer.write(text):
            self._num_lost += 1
        return len(text)

    def flush(self) -> None:
        """Return at once: structlog calls this after each line, and nobody may wait."""

    def drain(self) -> None:
        """Wait at most `FLUSH_TIMEOUT_S` until all lines are written."""
        self._writer.flush(FLUSH_TIMEOUT_S)

    def _failed(self, _: OSError) -> None:
        self._num_lost += 1


_lines: list[Lines] = []


def flush_log() -> None:
    """Write the waiting lines; call it before ending the process without `atexit`."""
    for lines in _lines:
        lines.drain()


def say_why(why: object) -> None:
    """Write, after the waiting lines, a sentence for the person who started this process, which ends."""
    flush_log()
    print(why, file=sys.stderr, flush=True)  # noqa: T201 -- instead of a traceback


def configure_logging(level: str, log_format: str, **always: str) -> None:
    """Set up structlog, once per process. The fields in `always` go into every line of every thread."""

    def add_always(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {**always, **event}

    render: list[structlog.typing.Processor]
    if log_format == "console":
        render = [structlog.dev.ConsoleRenderer()]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    lines = Lines(sys.stderr.fileno())
    _lines.append(lines)
    atexit.register(flush_log)
    logging.basicConfig(stream=lines, format="%(message)s")  # lines of libraries, such as gRPC
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_always,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        # The factory is typed for files, but calls only `write` and `flush`.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", lines)),
        cache_logger_on_first_use=True,
    )


class BackgroundWriter:
    """Writes to a file descriptor, in order. Calls `failed` on its thread for each text that is lost."""

    def __init__(self, fd: int, max_waiting_bytes: int, failed: Callable[[OSError], None]) -> None:
        self._fd = fd
        self._max_waiting_bytes = max_waiting_bytes
        self._failed = failed
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._flushes = 0
        """Callers that wait in `flush`."""
        self._rests = False
        """Whether the thread wakes up by itself."""
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
            if self._is_much() or (len(self._waiting) == 1 and not self._rests):
                self._changed.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until everything is written; return whether it is."""
        with self._changed:
            self._flushes += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._waiting_bytes, timeout_s)
            finally:
                self._flushes -= 1

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
                texts = list(self._waiting)
                self._waiting.clear()
            for together in _in_pieces(texts):
                try:
                    _write_all(self._fd, b"".join(together))
                except OSError as error:
                    for _ in together:
                        self._failed(error)
                with self._changed:
                    self._waiting_bytes -= sum(map(len, together))
            with self._changed:
                self._changed.notify_all()
                self._rests = True
                self._changed.wait_for(lambda: self._closed or self._flushes or self._is_much(), GATHER_S)
                self._rests = False

    def _is_much(self) -> bool:
        return 4 * self._waiting_bytes > self._max_waiting_bytes


def _in_pieces(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group texts into what a pipe takes in one piece, since others may write to it, too."""
    piece: list[bytes] = []
    size = 0
    for text in texts:
        if piece and size + len(text) > select.PIPE_BUF:
            yield piece
            piece, size = [], 0
        piece.append(text)
        size += len(text)
    yield piece


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
