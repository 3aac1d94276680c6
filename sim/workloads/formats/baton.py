"""The requests of a fleet as JSON lines, which `baton bench` records and the simulator plays.

One object per line, `index` counting from 0 so that a lost line shows; times in seconds from the start of the
trace, never falling. Lengths are tokens. Promises are milliseconds, absent or null where none was asked for.

    {"index": 0, "at_s": 0.12, "prompt_tokens": 900, "output_tokens": 41, "slo_class": "standard",
     "ttft_ms": 1000, "tpot_ms": 50, "tenant": "", "shared_blocks": [3, 1], "shared_block_tokens": 512}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sim.workloads.formats.rows import (
    MAX_AT_S,
    MAX_TOKENS,
    Rows,
    is_blocks,
    is_int,
    is_time,
    json_row,
)
from sim.workloads.trace import TraceError, TraceRequest

SLO_CLASSES = ("interactive", "standard", "batch")
MAX_MS = 86_400_000
TIME = "at_s"

_LENGTH = is_int(1, MAX_TOKENS), f"an integer from 1 to {MAX_TOKENS}"
_MS = is_int(1, MAX_MS), f"an integer from 1 to {MAX_MS}, or absent"
_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "prompt_tokens": _LENGTH,
    "output_tokens": _LENGTH,
    "max_tokens": _LENGTH,
    "slo_class": (lambda value: value in SLO_CLASSES, ", ".join(SLO_CLASSES)),
    "ttft_ms": _MS,
    "tpot_ms": _MS,
    "itl_ms": _MS,
    "tenant": (lambda value: isinstance(value, str), "a string"),
    "shared_blocks": (is_blocks, "a list of integers from 0"),
    "shared_block_tokens": (is_int(0, MAX_TOKENS), f"an integer from 0 to {MAX_TOKENS}"),
}
_NEEDED = {"prompt_tokens", "output_tokens"}
_NAMES = ("index", TIME, *_FIELDS)


def begins(first_line: str) -> bool:
    """Return True if a file that begins so has this format."""
    return '"index"' in first_line


def read(lines: Iterable[str]) -> Rows:
    """Yield the requests with their lines."""
    for index, text in enumerate(lines):
        line = index + 1
        row = json_row(line, text, _NAMES)
        if row.get("index") != index:
            raise TraceError(line, "index", row.get("index"), f"{index}: a trace has no holes")
        yield line, _request(line, row)


def dump(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Yield lines with newlines that `read` reads back as the same requests."""
    for index, request in enumerate(requests):
        row = {"index": index, TIME: request.at_s} | {
            name: value
            for name in _FIELDS
            if (value := getattr(request, name)) is not None and value not in ((), 0, "")
        }
        yield json.dumps(row, separators=(", ", ": ")) + "\n"


def _request(line: int, row: dict[str, Any]) -> TraceRequest:
    at_s: Any = row.get(TIME)
    if not is_time(at_s):
        raise TraceError(line, TIME, at_s, f"a finite number of seconds from 0 to {MAX_AT_S:g}")
    values: dict[str, Any] = {}
    for name, (accepts, accepted) in _FIELDS.items():
        value: Any = row.get(name)
        if value is None and name not in _NEEDED:
            continue
        if not accepts(value):
            raise TraceError(line, name, value, accepted)
        values[name] = tuple(value) if name == "shared_blocks" else value
    request = TraceRequest(at_s=float(at_s), **values)
    _check_shared(line, request)
    if request.max_tokens is not None and request.max_tokens < request.output_tokens:
        raise TraceError(line, "max_tokens", request.max_tokens, f"from {request.output_tokens}, the output")
    return request


def _check_shared(line: int, request: TraceRequest) -> None:
    size = request.shared_block_tokens
    if bool(request.shared_blocks) != bool(size):
        raise TraceError(line, "shared_block_tokens", size, "at least 1 with shared_blocks, else absent")
    if size and (len(request.shared_blocks) - 1) * size >= request.prompt_tokens:
        most = -(-request.prompt_tokens // size)
        raise TraceError(line, "shared_blocks", list(request.shared_blocks), f"at most {most} in this prompt")
