"""The types between a worker's step loop and its policy: the view of a step, and its plan."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.cost_model import CostModel
from scheduling.value import value

NO_LIMIT_S = float("inf")


@value
class PrefillWork:
    """A prompt, or the rest of one, to compute; its place in the list is its priority."""

    key: int
    """Its group's key, by which the chunks of a plan refer to it."""
    num_remaining_tokens: int
    num_computed_tokens: int = 0
    """Context before it: computed by earlier steps, or cached."""
    num_seqs: int = 1
    """Choices that decode once it is computed."""
    waited_s: float = 0.0
    """Seconds since this worker received it."""


@value
class DecodeLoad:
    """All running decodes, as aggregates."""

    num_seqs: int = 0
    context_tokens: int = 0
    slack_s: float = NO_LIMIT_S
    """Seconds until the earliest due token; 0 while one is late and may catch up. Hopeless ones do not
    count."""
    gap_limit_s: float = NO_LIMIT_S
    """The longest step that the strictest running promise allows: its ITL, or some TPOTs."""


@value
class StepView:
    """A worker between two steps. `waiting` has the prompts that memory and seats have room for."""

    decodes: DecodeLoad
    waiting: Sequence[PrefillWork]
    token_budget: int
    """The most tokens of a step, decodes included; decodes run even if they alone exceed it."""
    max_seqs: int
    """The most sequences that may run."""
    cost: CostModel


@value
class Chunk:
    """The next `num_tokens` of one prompt."""

    key: int
    num_tokens: int


@value
class StepPlan:
    """A step: `num_decodes` tokens of running choices (all of them, or none), then the chunks.

    Without either, nothing runs for at most `wait_s`, unless a command comes before.
    """

    num_decodes: int
    chunks: tuple[Chunk, ...] = ()
    wait_s: float = NO_LIMIT_S
