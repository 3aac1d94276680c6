"""The sampling parameters of each row of a batch as columns, and the tokens that rows may draw next.

These depend on a row's grammar and its bad words. Those that a grammar allows are found while the model
computes the logits. Each token is a bit. A thread of its own finds the bits of a step's rows, outside of
Python's lock, and the device turns them into numbers to add to the logits: 0 for a token that is allowed,
minus infinity otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.batch import Rows
from engine.device import StepUpload, upload
from engine.sampling.penalties import TokenCounts
from model_output.grammar.grammar import Follower, MaskFinder
from scheduling.request import SamplingParams

NUM_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Threads that find the tokens of one batch."""
ROWS_AT_ONCE_ON_CPU = 8
"""Memory for more rows' numbers would come fresh from the system at each step, which costs more than they."""


class GrammarMasks:
    """The tokens that grammars allow, in columns over the rows of a batch.

    Rows change only while nothing is being found.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.has_grammar = np.zeros(max_rows, dtype=np.bool_)
        self._followers: list[Follower | None] = [None] * max_rows
        self._allowed = np.zeros((max_rows, -(-vocab_size // 32)), dtype=np.int32)
        """Bit i of word w: whether a row may draw token 32 · w + i next."""
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits == 0).to(device)
        self._added = torch.zeros(256, 8, device=device).masked_fill_(forbidden, float("-inf"))
        """Numbers to add to the logits of 8 tokens, by the byte that has their bits."""
        self._finder: MaskFinder | None = None
        self._thread = ThreadPoolExecutor(1, "masks")
        self._finding: Future[None] | None = None

    def set(self, row: int, follower: Follower | None) -> None:
        """Describe a row that joins; without a grammar it may draw any token."""
        self.has_grammar[row] = follower is not None
        self._followers[row] = follower

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self.has_grammar[target] = self.has_grammar[source]
        self._allowed[target] = self._allowed[source]
        self._followers[target] = self._followers[source]

    def spread(self, source: int, targets: range, token_ids: Sequence[int]) -> None:
        """Give each of `targets` the state of a row behind one more of `token_ids`, which it allows."""
        self.has_grammar[targets.start : targets.stop] = self.has_grammar[source]
        follower = self._followers[source]
        for row, token_id in zip(targets, token_ids, strict=True):
            follower = None if follower is None else follower.after(token_id)
            self._followers[row] = follower

    def follower(self, row: int) -> Follower:
        """Return the state of a row that has a grammar."""
        follower = self._followers[row]
        assert follower is not None
        return follower

    def begin(self, rows: Sequence[int]) -> None:
        """Begin to find the tokens that may follow in `rows`, which have grammars, as they are now."""
        assert self._finding is None
        if not rows:
            return
        if self._finder is None:
            self._finder = MaskFinder(NUM_THREADS)
        states, allowed = [(self.follower(row), row) for row in rows], self._allowed
        self._finding = self._thread.submit(
            self._finder.find, states, allowed.ctypes.data, allowed.strides[0], len(allowed)
        )

    def wait(self) -> None:
        """Return when nothing is being found."""
        finding, self._finding = self._finding, None
        if finding is not None:
            finding.result()

    def stuck(self, rows: Sequence[int]) -> dict[int, str]:
        """Return why no token may follow, for those of `rows` where this is so; none will be drawn there."""
        found = {}
        for row in rows:
            follower = self.follower(row)
            follower.check(has_allowed=bool(self._allowed[row].any()))
            if follower.error:
                self._allowed[row] = 0
                found[row] = follower.error
        return found

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """Forbid tokens in logits [rows, vocab]; stuck rows have no finite logit then."""
        places, allowed = np.flatnonzero(self.has_grammar[rows]), self._allowed[rows]
        numbers = self._added.to(logits.dtype)
        at_once = ROWS_AT_ONCE_ON_CPU if logits.device.type == "cpu" else max(1, len(places))
        for begin in range(0, len(places), at_once):
            some = places[begin : begin + at_once]
            bits = allowed[some].view(np.uint8).reshape(-1)
            added = numbers.index_select(0, upload(bits, logits.device).int())
            logits.index_add_(0, upload(some, logits.device), added.view(len(some), -1)[:, : logits.shape[1]])


class BadWords:
    """The bad words of a request that have more than one token; those of one token are banned everywhere."""

    __slots__ = ("_by_last",)

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        """Maps the last token before a banned one to all tokens before the banned one, and the banned one."""
        for sequence in sequences:
            *before, banned = sequence
            if before:
                self._by_last.setdefault(before[-1], []).append((before, banned))

    def __bool__(self) -> bool:
        return bool(self._by_last)

    def banned_after(self, output: Sequence[int]) -> list[int]:
        """Return the tokens, ascending, that would complete a bad word behind this output."""
        ends = self._by_last.get(output[-1], ()) if output else ()
        found = {banned for before, banned in ends if list(output[-len(before) :]) == before}
        return sorted(found)


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
