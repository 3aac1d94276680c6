"""Tokens as columns: what a step produced, without an object per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate


@dataclass(slots=True)
class TokenColumns:
    """Row i is one token; see `TokenColumns` in `generation.proto`.

    The first five columns have equal length. `text_lengths` has it too, or is empty when no row has text;
    `text_utf8` is the rows' text back to back. `logprob_rows` names the rows that carry log-probabilities;
    `logprobs` and `top_counts` are aligned with it, `top_token_ids` and `top_logprobs` hold all rows'
    alternatives back to back. `stop_rows` names the rows whose text completes a stop string, `stop_places`
    has the index of that string in the request's `stop_strings`.
    """

    handles: Sequence[int] = field(default_factory=list)
    choices: Sequence[int] = field(default_factory=list)
    indexes: Sequence[int] = field(default_factory=list)
    token_ids: Sequence[int] = field(default_factory=list)
    finish_reasons: Sequence[int] = field(default_factory=list)
    text_lengths: Sequence[int] = field(default_factory=list)
    text_utf8: bytes = b""
    logprob_rows: Sequence[int] = field(default_factory=list)
    logprobs: Sequence[float] = field(default_factory=list)
    top_counts: Sequence[int] = field(default_factory=list)
    top_token_ids: Sequence[int] = field(default_factory=list)
    top_logprobs: Sequence[float] = field(default_factory=list)
    stop_rows: Sequence[int] = field(default_factory=list)
    stop_places: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens, the first of which stands at `first_index`, 1 or more.

    Each has `num_top` alternatives, most likely first; those of all tokens are back to back.
    """

    handle: int
    first_index: int
    logprobs: Sequence[float]
    num_top: int
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]

    @property
    def next_index(self) -> int:
        """The index of the token after these."""
        return self.first_index + len(self.logprobs)

    def from_index(self, index: int) -> PromptLogprobs:
        """Return the log-probabilities of the tokens from `index` on."""
        skipped = max(0, index - self.first_index)
        if not skipped:
            return self
        return replace(
            self,
            first_index=index,
            logprobs=self.logprobs[skipped:],
            top_token_ids=self.top_token_ids[skipped * self.num_top :],
            top_logprobs=self.top_logprobs[skipped * self.num_top :],
        )


def take_rows(columns: TokenColumns, rows: Sequence[int], handles: Sequence[int]) -> TokenColumns:
    """Return the given rows, ascending, under other handles (one per row)."""
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
