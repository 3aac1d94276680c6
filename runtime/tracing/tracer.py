"""Decides which requests are traced, and hands their spans to what sends them. Nobody waits for that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from runtime.tracing.context import SpanContext, new_trace, read_traceparent
from runtime.tracing.settings import TracingSettings
from runtime.tracing.span import Span


class Exporter(Protocol):
    """Takes spans, and sends them when it can."""

    def put(self, spans: Sequence[Span]) -> None:
        """Take spans, or drop them; return at once."""
        ...

    def close(self) -> None:
        """Send what waits, for a short time, and stop."""
        ...


class Tracer:
    """Begins spans and takes those that are over; a process that traces nothing has none."""

    def __init__(self, exporter: Exporter, ratio: float) -> None:
        self._exporter = exporter
        self._ratio = ratio

    def begin(self, traceparent: str) -> SpanContext:
        """Return the context of a new span: below the caller's, and traced if that is; or of a new trace.

        A malformed `traceparent` counts as none.
        """
        parent = read_traceparent(traceparent)
        if parent is not None:
            return parent.child()
        return new_trace(is_sampled=random.random() < self._ratio)

    def export(self, spans: Iterable[Span]) -> None:
        """Send spans, of which all contexts are sampled."""
        self._exporter.put(list(spans))

    def close(self) -> None:
        self._exporter.close()


def open_tracer(settings: TracingSettings, service: str, instance: str) -> Tracer | None:
    """Return the tracer of a process, under these names; None if nothing is to be traced.

    Only otherwise is OpenTelemetry's package imported.
    """
    if not settings.endpoint:
        return None
    from runtime.tracing.exporter import OtlpExporter  # noqa: PLC0415 -- see above

    return Tracer(OtlpExporter(settings, service, instance), settings.ratio)
