"""The traces of language models in Azure's public dataset, of 2023 and 2024, as CSV.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Times count from the first request. A time without a zone is taken as UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sim.workloads.formats.rows import Rows, csv_header, csv_rows, is_header, length
from sim.workloads.trace import TraceError, TraceRequest

TIME = "TIMESTAMP"
_PROMPT, _OUTPUT = "ContextTokens", "GeneratedTokens"
_COLUMNS = (TIME, _PROMPT, _OUTPUT)


def begins(first_line: str) -> bool:
    """Return True if a file that begins so has this format."""
    return is_header(csv_header(first_line), _COLUMNS)


def read(lines: Iterable[str]) -> Rows:
    """Yield the requests with their lines."""
    start: datetime | None = None
    for line, row in csv_rows(lines, _COLUMNS):
        at = _time(line, row[TIME])
        start = start or at
        yield (
            line,
            TraceRequest(
                (at - start).total_seconds(),
                length(line, _PROMPT, row[_PROMPT]),
                length(line, _OUTPUT, row[_OUTPUT]),
            ),
        )


def _time(line: int, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise TraceError(line, TIME, text, "a time such as 2023-11-16 18:15:46.6805900") from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
