"""Finds the format of a trace, plain or gzipped, and yields its requests."""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sim.workloads.formats import azure, baton, burstgpt, mooncake
from sim.workloads.formats.rows import Rows
from sim.workloads.trace import TraceError, TraceRequest

GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Format:
    """A format of traces."""

    name: str
    time: str
    """The field for a request's time."""
    begins: Callable[[str], bool]
    """Tells the format by a file's first line."""
    read: Callable[[Iterable[str]], Rows]
    has_promises: bool = False
    """Requests state the promises that they asked for."""


FORMATS = {
    kind.name: kind
    for kind in (
        Format("baton", baton.TIME, baton.begins, baton.read, has_promises=True),
        Format("mooncake", mooncake.TIME, mooncake.begins, mooncake.read),
        Format("azure", azure.TIME, azure.begins, azure.read),
        Format("burstgpt", burstgpt.TIME, burstgpt.begins, burstgpt.read),
    )
}

BROKEN = (OSError, EOFError, zlib.error, UnicodeDecodeError)
"""The errors of `text_lines` for a file that ends too early, or is no text."""


def text_lines(file: io.RawIOBase) -> Iterator[str]:
    """Yield the lines of a file or a pipe, which is unpacked if it is gzipped, and close it."""
    with io.BufferedReader(file) as raw:
        is_packed = raw.peek(len(GZIP))[: len(GZIP)] == GZIP
        with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if is_packed else raw, encoding="utf-8") as lines:
            yield from lines


def find_format(lines: Iterable[str], name: str | None) -> tuple[Format, Iterator[str]]:
    """Return the format of this name, or the one that the first line tells, and all lines."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        raise TraceError(1, "the line", None, "at least one request")
    every = itertools.chain((first,), rest)
    if name is not None:
        return FORMATS[name], every
    fits = [entry for entry in FORMATS.values() if entry.begins(first)]
    if len(fits) != 1:
        accepted = f"one that tells the format, or --trace-format {'|'.join(FORMATS)}"
        raise TraceError(1, "the line", first.strip()[:80], accepted)
    return fits[0], every


def requests(lines: Iterable[str], kind: Format) -> Iterator[TraceRequest]:
    """Yield the requests of a trace; raise `TraceError` for the first line that cannot be used."""
    before_s = 0.0
    for line, request in kind.read(lines):
        if request.at_s < before_s:
            accepted = f"from {before_s:.9g}, the time of the line before, in seconds of the trace"
            raise TraceError(line, kind.time, request.at_s, accepted)
        before_s = request.at_s
        yield request
