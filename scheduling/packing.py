"""What goes into one step: all running decodes, then prefill chunks in order while the step still fits.

Decodes are never paused for prefill and a prompt is cut to what the budget leaves, so that no step is longer
than its budget allows: the stall-free batching of Sarathi-Serve (Agrawal et al., "Taming Throughput-Latency
Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024), with a fixed number of tokens as the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """A prompt, or the rest of one, that is to be computed; its order in the list is its priority."""

    handle: int
    num_remaining_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` of one prompt."""

    handle: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: `num_decodes` tokens of running choices, then the chunks."""

    num_decodes: int
    chunks: tuple[Chunk, ...]


def plan_step(num_decodes: int, waiting: Sequence[PrefillWork], token_budget: int) -> StepPlan:
    """Every decode, then chunks in order until `token_budget` tokens are used or nothing waits.

    Decodes run even where they alone exceed the budget; then no chunk does.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, not {token_budget}")
    room = token_budget - num_decodes
    chunks: list[Chunk] = []
    for work in waiting:
        if room <= 0:
            break
        num_tokens = min(work.num_remaining_tokens, room)
        chunks.append(Chunk(work.handle, num_tokens))
        room -= num_tokens
    return StepPlan(num_decodes, tuple(chunks))
