"""Takes some rows out of `TokenColumns`, keeping all columns in step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from scheduling.columns import TokenColumns


def take_rows(columns: TokenColumns, rows: Sequence[int], handles: Sequence[int]) -> TokenColumns:
    """The given rows, ascending, under other handles (one per row)."""
    taken = TokenColumns(
        handles=handles,
        choices=[columns.choices[row] for row in rows],
        indexes=[columns.indexes[row] for row in rows],
        token_ids=[columns.token_ids[row] for row in rows],
        finish_reasons=[columns.finish_reasons[row] for row in rows],
    )
    if columns.text_lengths:
        _take_text(columns, rows, taken)
    if columns.logprob_rows:
        _take_logprobs(columns, rows, taken)
    if columns.stop_rows:
        _take_stops(columns, rows, taken)
    return taken


def _take_text(columns: TokenColumns, rows: Sequence[int], taken: TokenColumns) -> None:
    ends = list(accumulate(columns.text_lengths))
    lengths = [columns.text_lengths[row] for row in rows]
    text = b"".join(columns.text_utf8[ends[row] - columns.text_lengths[row] : ends[row]] for row in rows)
    if text:
        taken.text_lengths, taken.text_utf8 = lengths, text


def _take_stops(columns: TokenColumns, rows: Sequence[int], taken: TokenColumns) -> None:
    stop_of = dict(zip(columns.stop_rows, columns.stop_places, strict=True))
    stopped = [(new, stop_of[row]) for new, row in enumerate(rows) if row in stop_of]
    taken.stop_rows = [row for row, _ in stopped]
    taken.stop_places = [stop_place for _, stop_place in stopped]


def _take_logprobs(columns: TokenColumns, rows: Sequence[int], taken: TokenColumns) -> None:
    place_of = {row: place for place, row in enumerate(columns.logprob_rows)}
    ends = list(accumulate(columns.top_counts))
    places = [(new, place_of[row]) for new, row in enumerate(rows) if row in place_of]
    tops = [slice(ends[place] - columns.top_counts[place], ends[place]) for _, place in places]
    taken.logprob_rows = [new for new, _ in places]
    taken.logprobs = [columns.logprobs[place] for _, place in places]
    taken.top_counts = [columns.top_counts[place] for _, place in places]
    taken.top_token_ids = [token_id for top in tops for token_id in columns.top_token_ids[top]]
    taken.top_logprobs = [logprob for top in tops for logprob in columns.top_logprobs[top]]
