"""The interface of what computes a step. It needs no model, so timed workers start without transformers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.model.attention.step_batch import StepBatch


class Runner(Protocol):
    """A model over its KV pool."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's KV; return logits [R, vocab] of `batch.logit_rows`, which may be empty."""
        ...
