"""Tokens as columns: what a step produced, without an object per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenColumns:
    """Row i is one token; see `TokenColumns` in `generation.proto`.

    The first five columns have equal length. `text_lengths` has it too, or is empty when no row has text;
    `text_utf8` is the rows' text back to back. `logprob_rows` names the rows that carry log-probabilities;
    `logprobs` and `top_counts` are aligned with it, `top_token_ids` and `top_logprobs` hold all rows'
    alternatives back to back. `stop_rows` names the rows whose text completes a stop string, `stop_places`
    says which one: an index in the request's `stop_strings`.
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
