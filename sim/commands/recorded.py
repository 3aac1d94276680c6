"""Recorded traffic: the flags for what is played of it, and the requests that they ask for."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sim.commands.values import POSITIVE, number
from sim.reporting.progress import opened
from sim.workload import Promises
from sim.workloads.formats.reading import BROKEN, FORMATS, Format, find_format, requests, text_lines
from sim.workloads.shapes import DEFAULT_CAPS, RequestShape
from sim.workloads.trace import Excerpt, Part, TraceRequest, excerpt, fitting, summarise


@dataclass(frozen=True, slots=True)
class Recorded:
    """The part of a trace that is played."""

    source: Path
    kind: Format
    part: Part
    excerpt: Excerpt

    @property
    def requests(self) -> tuple[TraceRequest, ...]:
        """At least one request."""
        return self.excerpt.requests

    @property
    def lengths(self) -> tuple[RequestShape, ...]:
        """The lengths of the requests."""
        return tuple(request.shape for request in self.requests)

    @property
    def notes(self) -> tuple[str, ...]:
        """The requests that are left out, in words."""
        counts = (
            (self.excerpt.num_empty, "without a prompt or without an output"),
            (self.excerpt.num_too_long, "longer than the model's context"),
        )
        return tuple(f"requests left out, {reason}: {count}" for count, reason in counts if count)

    def asking(self, promises: Promises) -> Recorded:
        """Return the same requests, each of which asks for these promises."""
        asked = asdict(promises)
        played = tuple(replace(request, **asked) for request in self.requests)
        return replace(self, excerpt=replace(self.excerpt, requests=played))

    def fitting(self, max_context: int) -> Recorded:
        """Leave out the requests that a model's context cannot hold; raise ValueError if none is left."""
        return _with_requests(replace(self, excerpt=fitting(self.excerpt, max_context)))

    def facts(self) -> dict[str, Any]:
        """Return the figures of the requests and how they are played, which JSON can hold."""
        return {
            **summarise(self.requests),
            "format": self.kind.name,
            "from_s": self.part.from_s,
            "speed": self.part.speed,
            "scale": self.part.scale,
            "left_out": list(self.notes),
        }


def add_source_flags(command: argparse.ArgumentParser, *, has_traces: bool) -> None:
    """Add the flags for the requests: a workload's or, where they are accepted, those of a trace."""
    group = command.add_argument_group("the requests")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--workload", choices=sorted(DEFAULT_CAPS), default="chat", help="the kind of requests (chat)"
    )
    if not has_traces:
        command.set_defaults(trace=None)
        return
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="play recorded requests instead, plain or gzipped"
    )
    group.add_argument(
        "--trace-format", choices=sorted(FORMATS), help="the format of the trace (told by its first line)"
    )
    group.add_argument(
        "--speed", type=POSITIVE, default=1.0, metavar="X", help="how fast time passes in the trace (1)"
    )
    group.add_argument(
        "--from", dest="from_s", type=number(0), default=0.0, metavar="S",
        help="leave out the first seconds of the trace (0)",
    )  # fmt: skip
    group.add_argument(
        "--for", dest="for_s", type=POSITIVE, default=math.inf, metavar="S",
        help="seconds of the trace to play (to its end)",
    )  # fmt: skip


def read_trace(args: argparse.Namespace) -> Recorded:
    """Read the part of a trace that the flags ask for, and show how far; raise ValueError as `read_part`."""
    part = Part(args.from_s, args.for_s, args.speed, args.scale)
    return read_part(args.trace, part, args.trace_format, opened)


def read_part(
    path: Path,
    part: Part,
    trace_format: str | None = None,
    open_file: Callable[[Path], AbstractContextManager[io.RawIOBase]] = io.FileIO,
) -> Recorded:
    """Read a part of a trace; raise ValueError naming file, line and field."""
    try:
        with open_file(path) as file:
            kind, lines = find_format(text_lines(file), trace_format)
            taken = excerpt(requests(lines, kind), part)
    except BROKEN as error:
        raise ValueError(
            f"trace {path} cannot be read ({error}); accepted: JSON lines or CSV, plain or gzipped"
        ) from error
    except ValueError as error:
        raise ValueError(f"trace {path}, {error}") from error
    return _with_requests(Recorded(path, kind, part, taken))


def _with_requests(recorded: Recorded) -> Recorded:
    """Return this; raise ValueError if nothing is left to play."""
    if recorded.requests:
        return recorded
    told = "".join(f"; {note}" for note in recorded.notes)
    part = recorded.part
    raise ValueError(
        f"trace {recorded.source} has no request from {part.from_s:g} s for {part.for_s:g} s{told}; "
        "accepted: at least one"
    )
