"""Counts the tokens that each row has seen, and applies penalties to its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device import upload_ids


class TokenCounts:
    """For each row of the batch, which tokens are in the prompt, and how often each was generated.

    The memory, [max_rows, vocab_size] of 5 bytes, is allocated when the first row with penalties joins.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_rows, vocab_size)
        self._device = device
        self._in_prompt = torch.empty(0, dtype=torch.bool, device=device)
        self._counts = torch.empty(0, dtype=torch.int32, device=device)

    def set(self, row: int, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        """Start a row afresh."""
        if self._counts.numel() == 0:
            self._in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        self._in_prompt[row].zero_()
        self._in_prompt[row, upload_ids(prompt_token_ids, self._device)] = True
        # Not bincount, which waits for a GPU to learn the length of its result.
        self._counts[row].zero_()
        self.add_to(row, output_token_ids)

    def add(self, rows: Tensor, token_ids: Tensor) -> None:
        """Count one more generated token in each of `rows` (distinct); both [r] int64."""
        self._counts[rows, token_ids] += 1

    def add_to(self, row: int, token_ids: Sequence[int]) -> None:
        """Count some more generated tokens of one row."""
        tokens = upload_ids(token_ids, self._device)
        self._counts[row].index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))

    def spread(self, source: int, targets: range, token_ids: Sequence[int]) -> None:
        """Copy a row to others; each has one more of `token_ids` than the one before, the first has one."""
        rows = slice(targets.start, targets.stop)
        self._in_prompt[rows], self._counts[rows] = self._in_prompt[source], self._counts[source]
        for row, token_id in zip(targets, token_ids, strict=True):
            self._counts[row : targets.stop, token_id] += 1

    def move(self, source: int, target: int) -> None:
        self._in_prompt[target] = self._in_prompt[source]
        self._counts[target] = self._counts[source]

    def penalise(
        self, logits: Tensor, rows: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
    ) -> Tensor:
        """Return the logits [r, vocab] of `rows` [r] after penalties, each [r, 1] in the logits' dtype.

        Repetition (Keskar et al., "CTRL", 2019) divides positive and multiplies negative logits of tokens in
        prompt or output; presence is subtracted once for tokens in the output, frequency once per occurrence.
        """
        counts = self._counts[rows]
        in_output = counts > 0
        repeated = torch.where(logits < 0, logits * repetition, logits / repetition)
        logits = torch.where(in_output | self._in_prompt[rows], repeated, logits)
        return logits - presence * in_output - frequency * counts

    def seen(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return, for `rows`, whether the prompt has a token (bool) and its count in the output (int32)."""
        return self._in_prompt[rows], self._counts[rows]
