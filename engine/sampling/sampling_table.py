"""The sampling parameters of each row of a batch, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Rows
from engine.device import StepUpload
from engine.sampling.allowed_tokens import BadWords, GrammarMasks
from engine.sampling.penalties import TokenCounts
from model_output.grammar.grammar import Follower
from scheduling.request import SamplingParams


class Edits:
    """A request's changes to the logits of single tokens, as columns: made once, when its row joins."""

    __slots__ = ("token_ids", "values")

    def __init__(self, values: Mapping[int, float]) -> None:
        ordered = sorted(values.items())
        self.token_ids: NDArray[np.int64] = np.array([token_id for token_id, _ in ordered], dtype=np.int64)
        """Ascending, each once."""
        self.values: NDArray[np.float64] = np.array([value for _, value in ordered], dtype=np.float64)

    def with_banned(self, token_ids: Sequence[int]) -> Edits:
        """Return these edits with some more tokens banned."""
        values = dict(zip(self.token_ids.tolist(), self.values.tolist(), strict=True))
        return Edits(values | dict.fromkeys(token_ids, float("-inf")))


NO_EDITS = Edits({})
NO_BAD_WORDS = BadWords(())


@lru_cache(maxsize=64)
def _edits(
    bias: tuple[tuple[int, float], ...],
    allowed: tuple[int, ...],
    bad_words: tuple[tuple[int, ...], ...],
    banned: tuple[int, ...],
) -> tuple[Edits, Edits, Edits]:
    """Edits of every draw, bans until `min_tokens`, and both: the choices of a request share them.

    If only some tokens may be drawn, all of these have an edit, of 0 at least, and no other has one.
    """
    values = dict(bias)
    if allowed:
        values = {token_id: values.get(token_id, 0.0) for token_id in allowed}
    values |= {sequence[0]: float("-inf") for sequence in bad_words if len(sequence) == 1}
    bans = dict.fromkeys(banned, float("-inf"))
    return Edits(values), Edits(bans), Edits(values | bans)


class SamplingTable:
    """Columns over the rows of a batch; joining and leaving touch one row."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.temperature = np.zeros(max_rows)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows)
        self.min_p = np.zeros(max_rows)
        self.repetition = np.ones(max_rows)
        self.presence = np.zeros(max_rows)
        self.frequency = np.zeros(max_rows)
        self.seed = np.zeros(max_rows, dtype=np.uint64)
        self.choice = np.zeros(max_rows, dtype=np.uint64)
        self.wants_logprobs = np.zeros(max_rows, dtype=np.bool_)
        self.num_logprobs = np.zeros(max_rows, dtype=np.int64)
        """The number of alternatives whose log-probabilities are wanted too."""
        self.min_tokens = np.zeros(max_rows, dtype=np.int64)
        self.has_penalties = np.zeros(max_rows, dtype=np.bool_)
        self.has_bias = np.zeros(max_rows, dtype=np.bool_)
        """Some token's logit is edited at every place of the output."""
        self.others = np.zeros(max_rows)
        """Added to logits that are not edited: 0, or -inf where only edited tokens may be drawn."""
        self.has_bad_words = np.zeros(max_rows, dtype=np.bool_)
        """Some token is banned because of the tokens before it."""
        self.is_plain = np.ones(max_rows, dtype=np.bool_)
        """The row is greedy and nothing else, but for a grammar: its token has the largest logit allowed."""
        self._columns = [column for column in vars(self).values() if isinstance(column, np.ndarray)]
        self.bias = [NO_EDITS] * max_rows
        self.banned = [NO_EDITS] * max_rows
        """Tokens that may not be drawn while fewer than `min_tokens` are out."""
        self.bias_and_banned = [NO_EDITS] * max_rows
        """Both of them."""
        self.bad_words = [NO_BAD_WORDS] * max_rows
        self.banned_now: dict[int, list[int]] = {}
        """By row: tokens that would complete a bad word with the next draw."""
        self.counts = TokenCounts(max_rows, vocab_size, device)
        self.masks = GrammarMasks(max_rows, vocab_size, device)
        self._upload = None if device.type == "cpu" else StepUpload(device)

    def set(
        self,
        row: int,
        params: SamplingParams,
        choice: int,
        *,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        min_tokens: int,
        banned: tuple[int, ...],
        follower: Follower | None = None,
    ) -> None:
        """Describe a row that joins; `follower` is the state of its grammar, if it has one."""
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition[row] = params.repetition_penalty
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.seed[row] = params.seed
        self.choice[row] = choice
        self.wants_logprobs[row] = params.logprobs is not None
        self.num_logprobs[row] = params.logprobs or 0
        self.min_tokens[row] = min_tokens if banned else 0
        edits = _edits(params.logit_bias, params.allowed_token_ids, params.bad_words, banned)
        self.bias[row], self.banned[row], self.bias_and_banned[row] = edits
        self.has_bias[row] = bool(len(self.bias[row].token_ids))
        self.others[row] = float("-inf") if params.allowed_token_ids else 0.0
        self.bad_words[row] = BadWords(params.bad_words) if params.bad_words else NO_BAD_WORDS
        self.has_bad_words[row] = bool(self.bad_words[row])
        self.masks.set(row, follower)
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self.has_penalties[row] = penalties != (1.0, 0.0, 0.0)
        if self.has_penalties[row]:
            self.counts.set(row, prompt_token_ids, output_token_ids)
        has_edits = self.has_bias[row] or self.has_bad_words[row]
        is_as_is = not (self.has_penalties[row] or has_edits or self.min_tokens[row])
        self.is_plain[row] = is_as_is and params.temperature == 0 and params.logprobs is None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        for column in self._columns:
            column[target] = column[source]
        self.bias[target] = self.bias[source]
        self.banned[target] = self.banned[source]
        self.bias_and_banned[target] = self.bias_and_banned[source]
        self.bad_words[target] = self.bad_words[source]
        self.masks.move(source, target)
        if self.has_penalties[source]:
            self.counts.move(source, target)

    def spread(
        self, source: int, targets: range, token_ids: Sequence[int], output_token_ids: Sequence[int]
    ) -> None:
        """Describe places of one row's output by a row each: behind the first of `token_ids`, the second, ...

        `output_token_ids` come before all of these.
        """
        rows = slice(targets.start, targets.stop)
        for column in self._columns:
            column[rows] = column[source]
        for edits in (self.bias, self.banned, self.bias_and_banned):
            edits[rows] = [edits[source]] * len(targets)
        self.bad_words[rows] = [self.bad_words[source]] * len(targets)
        self.masks.spread(source, targets, token_ids)
        if self.has_penalties[source]:
            self.counts.spread(source, targets, token_ids)
        if self.has_bad_words[source]:
            output = [*output_token_ids, *token_ids]
            for row, end in zip(targets, range(len(output_token_ids) + 1, len(output) + 1), strict=True):
                self.banned_now[row] = self.bad_words[source].banned_after(output[:end])

    def copy_draws(self, sources: Sequence[int], first: int) -> None:
        """Describe draws as those of some rows by the rows from `first`, to draw a draft of them.

        What depends on the tokens before is left out: penalties, bad words and grammars.
        """
        rows = slice(first, first + len(sources))
        for column in self._columns:
            column[rows] = column[sources]
        self.has_penalties[rows] = self.has_bad_words[rows] = False
        for edits in (self.bias, self.banned, self.bias_and_banned):
            edits[rows] = [edits[source] for source in sources]
        for row in range(rows.start, rows.stop):
            self.masks.set(row, None)

    def masked(self, logits: Tensor, rows: Rows) -> Tensor:
        """Return logits [rows, vocab] without the tokens that grammars of the rows do not allow.

        They are the same memory, unless some row's log-probabilities are wanted, which are the model's own.
        """
        if not self.masks.has_grammar[rows].any():
            return logits
        masked = logits.clone() if self.wants_logprobs[rows].any() else logits
        self.masks.apply(masked, rows)
        return masked

    def upload(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Copy columns that a step's draws need to the device of the logits, in one copy."""
        if self._upload is None:
            return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        return self._upload(columns)
