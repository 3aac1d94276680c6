"""Choose a step's chunks in list order: up to a number of tokens, whole prompts, or up to a duration."""

from __future__ import annotations

from scheduling.cost_model import CostModel, StepShape
from scheduling.step import Chunk, PrefillWork, StepView

GRAIN_TOKENS = 64
"""A chunk that does not end its prompt is a multiple of this, and the least that a step computes of one."""


def fill_to_budget(view: StepView) -> tuple[Chunk, ...]:
    """Return chunks in order until `token_budget` tokens are used, including decodes, or nothing waits."""
    room = _room(view)
    chunks: list[Chunk] = []
    for work in view.waiting:
        if room <= 0:
            break
        num_tokens = min(work.num_remaining_tokens, room)
        chunks.append(Chunk(work.key, num_tokens))
        room -= num_tokens
    return tuple(chunks)


def whole_prompts(view: StepView, num_decodes: int) -> tuple[Chunk, ...]:
    """Return uncut prompts in order that fit into the budget beside `num_decodes`; the first in any case.

    Otherwise a prompt longer than the budget would never run.
    """
    room = _room(view) + view.decodes.num_seqs - num_decodes
    chunks: list[Chunk] = []
    for work in view.waiting:
        if chunks and work.num_remaining_tokens > room:
            break
        chunks.append(Chunk(work.key, work.num_remaining_tokens))
        room -= work.num_remaining_tokens
    return tuple(chunks)


def whole_batch(view: StepView) -> tuple[Chunk, ...]:
    """Return uncut prompts in order, at least one, until `max_seqs` sequences; tokens are not counted."""
    seats = view.max_seqs
    chunks: list[Chunk] = []
    for work in view.waiting:
        if chunks and work.num_seqs > seats:
            break
        chunks.append(Chunk(work.key, work.num_remaining_tokens))
        seats -= work.num_seqs
    return tuple(chunks)


def fill_to_duration(view: StepView, limit_s: float) -> tuple[Chunk, ...]:
    """Return chunks in order while 19 of 20 such steps, with all decodes, last at most `limit_s`.

    A limit that one grain would break is extended to that grain, so that decodes without slack never starve
    prefill. `token_budget` holds too: the step's buffers have room for no more.
    """
    room = _room(view)
    if room <= 0 or not view.waiting:
        return ()
    shape = StepShape.of(view.decodes.num_seqs, view.decodes.context_tokens, ())
    grain = shape.with_chunk(view.waiting[0].num_computed_tokens, GRAIN_TOKENS)
    limit_s = max(limit_s, view.cost.predict_q95(grain))
    chunks: list[Chunk] = []
    for work in view.waiting:
        num_tokens = _longest(view.cost, shape, work, room, limit_s)
        if num_tokens == 0:
            break
        chunks.append(Chunk(work.key, num_tokens))
        room -= num_tokens
        if num_tokens < work.num_remaining_tokens or room == 0:
            break
        shape = shape.with_chunk(work.num_computed_tokens, num_tokens)
    return tuple(chunks)


def _longest(cost: CostModel, shape: StepShape, work: PrefillWork, room: int, limit_s: float) -> int:
    """Return the longest chunk of `work` that fits: all of it, or whole grains; 0 if no grain fits."""

    def fits(num_tokens: int) -> bool:
        return cost.predict_q95(shape.with_chunk(work.num_computed_tokens, num_tokens)) <= limit_s

    most = min(work.num_remaining_tokens, room)
    if fits(most):
        return most if most == work.num_remaining_tokens else _grains(most)
    low, high = 0, (most - 1) // GRAIN_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * GRAIN_TOKENS) else (low, middle - 1)
    return low * GRAIN_TOKENS


def _grains(num_tokens: int) -> int:
    """Return the tokens of whole grains; the number itself if it is less than a grain."""
    return num_tokens - num_tokens % GRAIN_TOKENS or num_tokens


def _room(view: StepView) -> int:
    """Return the tokens that the decodes leave of the budget."""
    if view.token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, not {view.token_budget}")
    return view.token_budget - view.decodes.num_seqs
