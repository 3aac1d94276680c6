"""Structured logs on stderr: one JSON object per line, or coloured lines. Prompts are never logged.

Logging never waits and never fails: a line that cannot be written is lost. Once there is room again, a line
reports how many were lost.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from typing import TextIO, cast

import structlog

from runtime.process.background import BackgroundWriter

MAX_WAITING_BYTES = 1 << 20
"""Lines beyond this are lost."""
FLUSH_TIMEOUT_S = 1.0
"""A process that ends waits this long for its lines to be written."""


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
