"""What a step rule sees and answers: the words between the worker's step and the policies."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.cost.cost_model import CostModel
from scheduling.value import value

NO_LIMIT_S = float("inf")


@value
class PrefillWork:
    """A prompt, or the rest of one, that is to be computed; its order in the list is its priority."""

    handle: int
    num_remaining_tokens: int
    num_computed_tokens: int = 0
    """Context before it: computed by earlier steps, or cached."""
    num_seqs: int = 1
    """Choices that decode once it is computed."""
    waited_s: float = 0.0
    """Since this worker was told of it."""


@value
class DecodeLoad:
    """All running decodes, as aggregates."""

    num_seqs: int = 0
    context_tokens: int = 0
    slack_s: float = NO_LIMIT_S
    """Until the earliest due next token; 0 while one is late and may catch up, hopeless ones left out."""
    gap_limit_s: float = NO_LIMIT_S
    """The longest step that the strictest running promise stands: its ITL, or some TPOTs."""


@value
class StepView:
    """One worker between two steps. `waiting` has those that memory and seats have room for."""

    decodes: DecodeLoad
    waiting: Sequence[PrefillWork]
    token_budget: int
    """Most tokens of one step, decodes included; decodes run even where they alone exceed it."""
    max_seqs: int
    """Most sequences that may run."""
    cost: CostModel


@value
class Chunk:
    """The next `num_tokens` of one prompt."""

    handle: int
    num_tokens: int


@value
class StepPlan:
    """One step: `num_decodes` tokens of running choices (all of them, or none), then the chunks.

    Without either nothing runs, and `wait_s` says for how long at most, unless something comes before.
    """

    num_decodes: int
    chunks: tuple[Chunk, ...] = ()
    wait_s: float = NO_LIMIT_S
