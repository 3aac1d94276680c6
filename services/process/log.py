"""Structured logs on stderr: a JSON object a line, or coloured lines for people. Prompts are never logged.

No caller ever waits for stderr, or fails by it: a line that cannot be written is lost, and when there is room
again a line says how many were.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from typing import TextIO, cast

import structlog

from services.process.background import BackgroundWriter

MAX_WAITING_BYTES = 1 << 20
"""Of lines: beyond, they are lost."""
LAST_WORDS_S = 1.0
"""A process that ends waits this long for its lines to be written."""


class Lines:
    """A text stream into a descriptor that may be full or stuck."""

    def __init__(self, fd: int) -> None:
        self._writer = BackgroundWriter(fd, MAX_WAITING_BYTES, self._failed)
        self._lost = self._told = 0

    def write(self, text: str) -> int:
        """Write whole lines, or lose them."""
        if self._lost > self._told:
            lost = self._lost
            if self._writer.write(json.dumps({"event": "log_lines_lost", "so_far": lost}) + "\n"):
                self._told = lost
        if not self._writer.write(text):
            self._lost += 1
        return len(text)

    def flush(self) -> None:
        """Called after each line; nothing waits here."""

    def written(self) -> None:
        """Wait for what is on its way, not for ever."""
        self._writer.flush(LAST_WORDS_S)

    def _failed(self, _: OSError) -> None:
        self._lost += 1


_lines: list[Lines] = []


def flush_log() -> None:
    """For who ends the process without `atexit`."""
    for one in _lines:
        one.written()


def configure_logging(level: str, log_format: str, **always: str) -> None:
    """Sets up structlog once per process; `always` goes into every line, whatever thread writes it."""

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
    logging.basicConfig(stream=lines, format="%(message)s")  # of libraries, such as gRPC
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_always,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        # Typed for files, of which it calls `write` and `flush`.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", lines)),
        cache_logger_on_first_use=True,
    )
