"""Where a span stands: its trace, its own id and that of its parent, and their text by W3C Trace Context."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

HEADER = "traceparent"
"""The name of the text in HTTP headers and in gRPC metadata."""
_NAMES = frozenset({HEADER, HEADER.encode()})
MAX_CHARACTERS = 256
"""A longer text is malformed: later versions of the format may add to it, but nothing of that size."""
_TEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?", re.ASCII)
_TRACE_BITS, _SPAN_BITS = 128, 64
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span that has begun: here, or at a caller."""

    trace_id: int
    span_id: int
    is_sampled: bool
    parent_id: int = 0
    """0: it has none, or is at a caller, who does not say."""

    @property
    def traceparent(self) -> str:
        """The text by which others make their spans children of this one."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"

    def child(self) -> SpanContext:
        """Return the context of a new span below this one."""
        return SpanContext(self.trace_id, _drawn(_SPAN_BITS), self.is_sampled, self.span_id)

    def sibling(self) -> SpanContext:
        """Return the context of a new span beside this one."""
        return SpanContext(self.trace_id, _drawn(_SPAN_BITS), self.is_sampled, self.parent_id)


def traceparent_in(headers: Iterable[tuple[str | bytes, str | bytes]]) -> str:
    """Return the text that names the caller's span; empty unless there is exactly one.

    `headers` are those of an HTTP request, or the metadata of a call, with names in lower case.
    """
    found = [value for name, value in headers if name in _NAMES]
    if len(found) != 1:
        return ""
    return found[0] if isinstance(found[0], str) else found[0].decode("latin-1")


def new_trace(*, is_sampled: bool) -> SpanContext:
    """Return the context of a span without a parent."""
    return SpanContext(_drawn(_TRACE_BITS), _drawn(_SPAN_BITS), is_sampled)


def read_traceparent(text: str) -> SpanContext | None:
    """Return the caller's span; None for a text that is malformed, which counts as if there were none."""
    if len(text) > MAX_CHARACTERS:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def _drawn(bits: int) -> int:
    """Draw an id, which is never 0."""
    return random.getrandbits(bits) or 1
