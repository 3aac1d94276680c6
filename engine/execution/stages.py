"""The interfaces of what computes steps: a runner, or the stages of a pipeline.

They need no model, so timed workers start without transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.model.attention.step_batch import StepBatch


class Runner(Protocol):
    """A model over its KV pool."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's KV; return logits [R, vocab] of `batch.logit_rows`, which may be empty."""
        ...


@dataclass(frozen=True, slots=True)
class Passed:
    """A step that has passed all stages."""

    logits: Tensor
    """[R, vocab_size], valid until the next step is sent."""
    idle_s: float
    """How long no stage computed it since it was sent."""


class Stages(Protocol):
    """Stages that compute several steps at once; each step passes all of them, in the order of sending."""

    @property
    def num_stages(self) -> int:
        """The number of stages. One more step may be in flight: it waits for a stage, so that none waits."""

    def send(self, batch: StepBatch) -> None:
        """Compute the first stage of a step, and let the others follow."""

    def has_passed(self) -> bool:
        """Return True if `receive` would not wait; a step is in flight."""

    def receive(self) -> Passed:
        """Wait for the step in flight that was sent first."""
