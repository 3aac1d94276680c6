"""Structured logs on stderr: a JSON object a line, or coloured lines for people. Prompts are never logged."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO

import structlog


class _Lossy:
    """A stream whose full disk, or whose reader that has left, costs lines and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


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
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_always,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(_Lossy(sys.stderr)),  # type: ignore[arg-type]  # as print uses it
        cache_logger_on_first_use=True,
    )
