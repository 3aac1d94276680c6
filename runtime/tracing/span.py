"""A span that is over, as all parts of a process note it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime.tracing.context import SpanContext

Value = str | bool | int | float | Sequence[str]


class Kind(enum.Enum):
    """The role of a span between processes: the same names as OpenTelemetry's."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"


@dataclass(frozen=True, slots=True)
class Span:
    """A span that is over. Times are those of `time.monotonic` on this machine, in seconds."""

    context: SpanContext
    name: str
    began_at: float
    ended_at: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    kind: Kind = Kind.INTERNAL
    error: str = ""
    """Why it failed; empty if it did not."""
