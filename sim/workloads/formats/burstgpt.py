"""The traces that BurstGPT published, as CSV.

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    5,ChatGPT,472,18,490,Conversation log

Timestamps are seconds; they count from the first request here, since the second file goes on where the first
one ended. The third file has a session and the time that a request took as well. A request that failed has
zero response tokens, and some have zero request tokens too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sim.workloads.formats.rows import (
    MAX_AT_S,
    Rows,
    csv_header,
    csv_rows,
    is_header,
    is_time,
    length,
)
from sim.workloads.trace import TraceError, TraceRequest

TIME = "Timestamp"
_PROMPT, _OUTPUT = "Request tokens", "Response tokens"
_COLUMNS = (TIME, "Model", _PROMPT, _OUTPUT, "Total tokens", "Log Type")
_OTHERS = ("Session ID", "Elapsed time")


def begins(first_line: str) -> bool:
    """Return True if a file that begins so has this format."""
    return is_header(csv_header(first_line), _COLUMNS, _OTHERS)


def read(lines: Iterable[str]) -> Rows:
    """Yield the requests with their lines."""
    start_s: float | None = None
    for line, row in csv_rows(lines, _COLUMNS, _OTHERS):
        at_s = _time(line, row[TIME])
        start_s = at_s if start_s is None else start_s
        yield (
            line,
            TraceRequest(
                at_s - start_s,
                length(line, _PROMPT, row[_PROMPT]),
                length(line, _OUTPUT, row[_OUTPUT]),
            ),
        )


def _time(line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not is_time(value):
        raise TraceError(line, TIME, text, f"a number of seconds from 0 to {MAX_AT_S:g}")
    return value
