"""Chunks for one step, in the order of the list."""

from __future__ import annotations

from scheduling.step import Chunk, StepView


def fill_to_budget(view: StepView) -> tuple[Chunk, ...]:
    """Chunks in order until `token_budget` tokens are used, decodes counted, or nothing waits."""
    if view.token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, not {view.token_budget}")
    room = view.token_budget - view.decodes.num_seqs
    chunks: list[Chunk] = []
    for work in view.waiting:
        if room <= 0:
            break
        num_tokens = min(work.num_remaining_tokens, room)
        chunks.append(Chunk(work.handle, num_tokens))
        room -= num_tokens
    return tuple(chunks)
