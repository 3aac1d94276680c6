"""Structured logs on stderr: a JSON object a line, or coloured lines for people. Prompts are never logged."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(level: str, log_format: str, **always: str) -> None:
    """Set up structlog once per process; `always` goes into every line."""
    render: list[structlog.typing.Processor]
    if log_format == "console":
        render = [structlog.dev.ConsoleRenderer()]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**always)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """A logger with this process's settings."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
