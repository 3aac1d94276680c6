"""Steps of a timed runner without a step loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.model.attention.step_batch import StepBatch, count_decodes
from worker.timed.timed_runner import TimedRunner

BLOCK = 4


def batch_of(*sequences: tuple[Sequence[int], int, Sequence[int]]) -> StepBatch:
    """Return a batch of (tokens, context before them, block table); the last token of each wants logits."""
    token_ids = [token for tokens, _, _ in sequences for token in tokens]
    positions = [before + place for tokens, before, _ in sequences for place in range(len(tokens))]
    slots = [
        table[(before + place) // BLOCK] * BLOCK + (before + place) % BLOCK
        for tokens, before, table in sequences
        for place in range(len(tokens))
    ]
    ends = np.cumsum([len(tokens) for tokens, _, _ in sequences])
    width = max(len(table) for _, _, table in sequences)
    tables = [[*table, *[0] * (width - len(table))] for _, _, table in sequences]
    lengths = [before + len(tokens) for tokens, before, _ in sequences]
    return StepBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *ends], dtype=torch.int32),
        logit_rows=torch.tensor(ends - 1),
        num_decodes=count_decodes([len(tokens) for tokens, _, _ in sequences]),
        max_context_len=max(lengths),
    )


def generate(
    runner: TimedRunner, prompt: list[int], table: Sequence[int], chunk: int, count: int
) -> list[int]:
    """Greedily, the prompt in pieces of `chunk`."""
    logits = torch.empty(0)
    for begin in range(0, len(prompt), chunk):
        logits = runner.forward(batch_of((prompt[begin : begin + chunk], begin, table)))
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        before = len(prompt) + len(tokens) - 1
        tokens.append(int(runner.forward(batch_of(([tokens[-1]], before, table)))[0].argmax()))
    return tokens
