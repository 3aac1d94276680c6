"""How each row of the batch wants its next token drawn, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.host_copies import StepUpload
from engine.penalties import TokenCounts
from scheduling.request import SamplingParams

NO_LOGPROBS = -1


class Edits:
    """What a request does to the logits of single tokens, as columns: made once, when its row joins."""

    __slots__ = ("token_ids", "values")

    def __init__(self, values: Mapping[int, float]) -> None:
        ordered = sorted(values.items())
        self.token_ids: NDArray[np.int64] = np.array([token_id for token_id, _ in ordered], dtype=np.int64)
        """Ascending, each once."""
        self.values: NDArray[np.float64] = np.array([value for _, value in ordered], dtype=np.float64)


NO_EDITS = Edits({})


@lru_cache(maxsize=64)
def _edits(bias: tuple[tuple[int, float], ...], banned: tuple[int, ...]) -> tuple[Edits, Edits, Edits]:
    """Bias, bans, and both: the choices of a request share them."""
    values, bans = dict(bias), dict.fromkeys(banned, float("-inf"))
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
        self.num_logprobs = np.full(max_rows, NO_LOGPROBS, dtype=np.int64)
        self.min_tokens = np.zeros(max_rows, dtype=np.int64)
        self.has_penalties = np.zeros(max_rows, dtype=np.bool_)
        self.has_bias = np.zeros(max_rows, dtype=np.bool_)
        self.is_plain = np.ones(max_rows, dtype=np.bool_)
        """Greedy, and nothing else: the token is the largest logit's."""
        self._columns = [column for column in vars(self).values() if isinstance(column, np.ndarray)]
        self.bias = [NO_EDITS] * max_rows
        self.banned = [NO_EDITS] * max_rows
        """Tokens that may not be drawn while fewer than `min_tokens` are out."""
        self.bias_and_banned = [NO_EDITS] * max_rows
        """Both in one."""
        self.counts = TokenCounts(max_rows, vocab_size, device)
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
    ) -> None:
        """Describe a row that joins."""
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition[row] = params.repetition_penalty
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.seed[row] = params.seed
        self.choice[row] = choice
        self.num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.min_tokens[row] = min_tokens if banned else 0
        self.bias[row], self.banned[row], self.bias_and_banned[row] = _edits(params.logit_bias, banned)
        self.has_bias[row] = bool(params.logit_bias)
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self.has_penalties[row] = penalties != (1.0, 0.0, 0.0)
        if self.has_penalties[row]:
            self.counts.set(row, prompt_token_ids, output_token_ids)
        is_as_is = not (self.has_penalties[row] or self.has_bias[row] or self.min_tokens[row])
        self.is_plain[row] = is_as_is and params.temperature == 0 and params.logprobs is None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        for column in self._columns:
            column[target] = column[source]
        self.bias[target] = self.bias[source]
        self.banned[target] = self.banned[source]
        self.bias_and_banned[target] = self.bias_and_banned[source]
        if self.has_penalties[source]:
            self.counts.move(source, target)

    def upload(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        """What a step's draws need of the host, where the logits are; in one copy."""
        if self._upload is None:
            return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        return self._upload(columns)
