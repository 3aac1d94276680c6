"""Rows of JSON and of CSV, and checks of their values. Whatever is wrong raises `TraceError`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from sim.workloads.trace import TraceError, TraceRequest

Rows = Iterator[tuple[int, TraceRequest]]
"""Requests, each with the line on which it ends, from 1."""

MAX_TOKENS = 10_000_000
MAX_AT_S = 366 * 86_400.0
MAX_BLOCK = 2**63 - 1

LENGTH = f"an integer from 0 to {MAX_TOKENS}"


def is_int(low: int, high: int) -> Callable[[object], bool]:
    """Return a check for an integer within these limits."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_blocks(value: object) -> bool:
    """Return True for a list of the names of shared blocks."""
    return isinstance(value, list) and all(is_int(0, MAX_BLOCK)(member) for member in value)


def is_time(value: object, most: float = MAX_AT_S) -> bool:
    """Return True for a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= most


def json_row(line: int, text: str, names: Collection[str]) -> dict[str, Any]:
    """Parse a JSON object that has none but these names."""
    try:
        row = json.loads(text)
    except ValueError as error:
        raise TraceError(line, "the line", text.strip()[:80], f"a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise TraceError(line, "the line", text.strip()[:80], "a JSON object")
    unknown = sorted(row.keys() - set(names))
    if unknown:
        raise TraceError(line, unknown[0], row[unknown[0]], f"only {', '.join(names)}")
    return row


def csv_header(text: str) -> list[str]:
    """Return the names of the columns."""
    return _cells(text)


def csv_rows(
    lines: Iterable[str], needed: Collection[str], others: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the cells of each row below the header, whose columns may have any order.

    None of these files quotes its cells, so a quotation mark is a character like any other.
    """
    names: list[str] = []
    for line, text in enumerate(lines, start=1):
        cells = _cells(text)
        if line == 1:
            names = cells
            if not is_header(names, needed, others):
                raise TraceError(1, "the header", text.strip()[:80], ",".join(needed))
        elif len(cells) != len(names):
            raise TraceError(line, "the number of columns", len(cells), f"{len(names)}, as in the header")
        else:
            yield line, dict(zip(names, cells, strict=True))


def is_header(names: Collection[str], needed: Collection[str], others: Collection[str] = ()) -> bool:
    """Return True if these are the needed columns, and perhaps some others, each once."""
    unique = set(names)
    return len(unique) == len(names) and set(needed) <= unique <= set(needed) | set(others)


def length(line: int, field: str, text: str) -> int:
    """Return a number of tokens."""
    # No longer text is a number that is accepted, and int() takes quadratic time.
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_TOKENS)):
        value = int(text)
        if value <= MAX_TOKENS:
            return value
    raise TraceError(line, field, text, LENGTH)


def _cells(text: str) -> list[str]:
    return text.rstrip("\r\n").split(",")
