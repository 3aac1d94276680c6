"""The requests of a fleet as JSON lines, which a live fleet records and a simulator plays.

One object per line, `index` counting from 0 so that a lost line shows; times in seconds from the start of the
trace, never falling. Lengths are tokens. Promises are milliseconds, absent or null where none was asked for.

    {"index": 0, "at_s": 0.12, "prompt_tokens": 900, "output_tokens": 41, "slo_class": "standard",
     "ttft_ms": 1000, "tpot_ms": 50, "tenant": "", "shared_blocks": [3, 1], "shared_block_tokens": 512}
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SLO_CLASSES = ("interactive", "standard", "batch")
MAX_TOKENS = 10_000_000
MAX_MS = 86_400_000
MAX_AT_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request as it came, and the length of its output."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    slo_class: str = "standard"
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    tenant: str = ""
    shared_blocks: tuple[int, ...] = ()
    """Places in the pool of shared prefix blocks that the prompt begins with."""
    shared_block_tokens: int = 0
    """Tokens of each shared block."""
    max_tokens: int | None = None
    """The most tokens that it asked for; None if the output always has the length asked for."""


class TraceError(ValueError):
    """A line that cannot be used; `line` counts from 1."""

    def __init__(self, line: int, field: str, value: object, accepted: str) -> None:
        super().__init__(f"line {line}: {field} is {value!r}; accepted: {accepted}")
        self.line = line
        self.field = field


def parse(lines: Iterable[str]) -> list[TraceRequest]:
    """Parse a trace; raise `TraceError` for the first invalid line."""
    requests: list[TraceRequest] = []
    last_line = 0
    for number, line in enumerate(lines, start=1):
        last_line = number
        row = _row(number, line)
        if row.get("index") != len(requests):
            raise TraceError(number, "index", row.get("index"), f"{len(requests)}: a trace has no holes")
        request = _request(number, row)
        if requests and request.at_s < requests[-1].at_s:
            requirement = f"from {requests[-1].at_s:g}, the time of the line before"
            raise TraceError(number, "at_s", request.at_s, requirement)
        requests.append(request)
    if not requests:
        raise TraceError(last_line, "index", None, "at least one request")
    return requests


def dump(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Yield lines with newlines that `parse` reads back as the same requests."""
    for index, request in enumerate(requests):
        row = {"index": index, "at_s": request.at_s} | {
            name: value
            for name in _FIELDS
            if (value := getattr(request, name)) is not None and value not in ((), 0, "")
        }
        yield json.dumps(row, separators=(", ", ": ")) + "\n"


def summarise(trace: Sequence[TraceRequest]) -> dict[str, Any]:
    """Return the figures of a trace with at least one request, which JSON can hold.

    `duration_s` is from the first to the last arrival; a promise that nobody asks for is None.
    """
    return {
        "requests": len(trace),
        "duration_s": trace[-1].at_s - trace[0].at_s,
        "ttft": _limits([request.ttft_ms for request in trace]),
        "tpot": _limits([request.tpot_ms for request in trace]),
        "itl": _limits([request.itl_ms for request in trace]),
    }


def _limits(promises: Iterable[int | None]) -> dict[str, float] | None:
    limits = [ms for ms in promises if ms is not None]
    if not limits:
        return None
    return {
        "requests": len(limits),
        "least_ms": min(limits),
        "median_ms": statistics.median(limits),
        "most_ms": max(limits),
    }


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(number, "the line", line.strip()[:80], f"a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise TraceError(number, "the line", line.strip()[:80], "a JSON object")
    unknown = sorted(row.keys() - _FIELDS.keys() - {"index", "at_s"})
    if unknown:
        raise TraceError(number, unknown[0], row[unknown[0]], f"only index, at_s, {', '.join(_FIELDS)}")
    return row


def _request(number: int, row: dict[str, Any]) -> TraceRequest:
    at_s: Any = row.get("at_s")
    is_number = isinstance(at_s, (int, float)) and not isinstance(at_s, bool)
    if not (is_number and math.isfinite(at_s) and 0 <= at_s <= MAX_AT_S):
        raise TraceError(number, "at_s", at_s, f"a finite number of seconds from 0 to {MAX_AT_S:g}")
    values: dict[str, Any] = {}
    for name, (accepts, accepted) in _FIELDS.items():
        value: Any = row.get(name)
        if value is None and name not in _NEEDED:
            continue
        if not accepts(value):
            raise TraceError(number, name, value, accepted)
        values[name] = tuple(value) if name == "shared_blocks" else value
    request = TraceRequest(at_s=float(at_s), **values)
    _check_shared(number, request)
    if request.max_tokens is not None and request.max_tokens < request.output_tokens:
        raise TraceError(
            number, "max_tokens", request.max_tokens, f"from {request.output_tokens}, the output"
        )
    return request


def _check_shared(number: int, request: TraceRequest) -> None:
    size = request.shared_block_tokens
    if bool(request.shared_blocks) != bool(size):
        raise TraceError(number, "shared_block_tokens", size, "at least 1 with shared_blocks, else absent")
    if len(request.shared_blocks) * size > request.prompt_tokens:
        most = request.prompt_tokens // size
        raise TraceError(
            number, "shared_blocks", list(request.shared_blocks), f"at most {most} in this prompt"
        )


def _is_int(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_places(value: object) -> bool:
    return isinstance(value, list) and all(_is_int(0, MAX_TOKENS)(member) for member in value)


_LENGTH = _is_int(1, MAX_TOKENS), f"an integer from 1 to {MAX_TOKENS}"
_MS = _is_int(1, MAX_MS), f"an integer from 1 to {MAX_MS}, or absent"
_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "prompt_tokens": _LENGTH,
    "output_tokens": _LENGTH,
    "max_tokens": _LENGTH,
    "slo_class": (lambda value: value in SLO_CLASSES, ", ".join(SLO_CLASSES)),
    "ttft_ms": _MS,
    "tpot_ms": _MS,
    "itl_ms": _MS,
    "tenant": (lambda value: isinstance(value, str), "a string"),
    "shared_blocks": (_is_places, "a list of integers from 0"),
    "shared_block_tokens": (_is_int(0, MAX_TOKENS), f"an integer from 0 to {MAX_TOKENS}"),
}
_NEEDED = {"prompt_tokens", "output_tokens"}
