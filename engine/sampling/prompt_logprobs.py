"""Log-probabilities of a prompt's own tokens: log-softmax of the model's logits at the token before each.

The logits of every position of a long chunk would take more memory than the rest of the step. So a step
computes at most `engine.core.batch.MAX_PROMPT_ROWS` of them, and chunks of such prompts are cut to that;
log-probabilities are computed from a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.sequence import SequenceGroup
from engine.device import Download, upload
from scheduling.columns import PromptLogprobs

ROWS_AT_ONCE = 32
"""Rows that are turned into float64 together: 33 MB for a vocabulary of 128k."""


class TakenRows:
    """Log-probabilities of some consecutive prompt tokens, on their way to the host."""

    def __init__(
        self, group: SequenceGroup, rows: range, logits: Tensor, *, rows_at_once: int = ROWS_AT_ONCE
    ) -> None:
        """`logits` [rows, vocab] are the model's own, at the positions `rows` of the group's prompt.

        With one row at once a row's bits do not depend on the others.
        """
        self.group = group
        self._rows = rows
        num_top = min(group.spec.sampling.prompt_logprobs or 0, logits.shape[-1])
        targets = upload(group.context[rows.start + 1 : rows.stop + 1].copy(), logits.device).unsqueeze(-1)
        parts = [
            _columns(logits[begin : begin + rows_at_once], targets[begin : begin + rows_at_once], num_top)
            for begin in range(0, len(rows), rows_at_once)
        ]
        chosen, tokens, values = (torch.cat(columns) for columns in zip(*parts, strict=True))
        self._waits: list[Callable[[], NDArray[np.generic]]] = [
            Download(column).wait for column in (chosen, tokens, values)
        ]

    def wait(self) -> PromptLogprobs | None:
        """Wait for the copies to the host and return the report; None if logits were not finite."""
        chosen, tokens, values = (wait() for wait in self._waits)
        # A single logit may be -inf. A row with NaN or an infinite largest logit has no finite sum.
        if np.isnan(chosen).any():
            return None
        return PromptLogprobs(
            handle=self.group.handle,
            first_index=self._rows.start + 1,
            logprobs=chosen.tolist(),
            num_top=tokens.shape[1],
            top_token_ids=tokens.ravel().tolist(),
            top_logprobs=values.ravel().tolist(),
        )


def _columns(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets' log-probabilities [r], and the likeliest tokens and their own [r, num_top]."""
    logprobs = torch.log_softmax(logits.clone().double(), dim=-1)
    top = torch.topk(logprobs, num_top, dim=-1)
    return logprobs.gather(-1, targets).squeeze(-1), top.indices, top.values
