"""Ragged batches by hand, for tests of what runs them: shuffled blocks, chunks and decodes mixed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch, count_decodes
from engine.model.model import Model

# What block tables hold past a sequence's blocks: reading it would be an index error.
NO_BLOCK = 1_000_000


@dataclass(frozen=True)
class Piece:
    """Tokens of one sequence that one step computes, the first of them at position `start`."""

    start: int
    tokens: Sequence[int]
    table: Sequence[int]


def make_batch(pieces: Sequence[Piece], block_size: int) -> StepBatch:
    """One step over `pieces`, with the logits of each piece's last token."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    ends = [0]
    for piece in pieces:
        own = range(piece.start, piece.start + len(piece.tokens))
        token_ids += piece.tokens
        positions += own
        slots += [piece.table[place // block_size] * block_size + place % block_size for place in own]
        ends.append(len(token_ids))
    width = max(len(piece.table) for piece in pieces)
    tables = [[*piece.table, *[NO_BLOCK] * (width - len(piece.table))] for piece in pieces]
    context_lens = [piece.start + len(piece.tokens) for piece in pieces]
    return StepBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        cu_seqlens_q=torch.tensor(ends, dtype=torch.int32),
        logit_rows=torch.tensor(ends[1:]) - 1,
        num_decodes=count_decodes([len(piece.tokens) for piece in pieces]),
        max_context_len=max(context_lens),
    )


def moved(batch: StepBatch, device: torch.device) -> StepBatch:
    """The step as the model of `device` takes it."""
    tensors: dict[str, Any] = {
        field.name: value.to(device)
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return replace(batch, **tensors)


def poisoned_pool(model: Model, block_size: int, num_blocks: int) -> KVPool:
    """A pool of NaN: whatever is read before it was written shows."""
    pool = KVPool(model.block_layout(block_size), num_blocks)
    pool.tensor.fill_(float("nan"))
    return pool


def shuffled_tables(lengths: Sequence[int], block_size: int, seed: int) -> tuple[list[list[int]], int]:
    """Tables for sequences of these lengths, no block shared, in no order; and the pool size they need."""
    needed = [-(-length // block_size) for length in lengths]
    blocks = list(range(1, sum(needed) + 1))
    random.Random(seed).shuffle(blocks)
    tables = [[blocks.pop() for _ in range(count)] for count in needed]
    return tables, sum(needed) + 1


@dataclass
class Growing:
    """A sequence that is prefilled in chunks and then grows greedily."""

    tokens: list[int]
    table: list[int]
    prompt_len: int
    computed: int = 0

    def next_piece(self, chunk: int) -> Piece:
        return Piece(self.computed, self.tokens[self.computed : self.computed + chunk], self.table)


def generate_greedily(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], num_tokens: int, chunk: int
) -> list[tuple[list[int], Tensor]]:
    """Tokens and logits [num_tokens, vocab] of each prompt; one sequence joins at each step."""
    block_size = runner.pool.layout.block_size
    tables, _ = shuffled_tables([len(prompt) + num_tokens for prompt in prompts], block_size, seed=3)
    everyone = [
        Growing(list(prompt), table, len(prompt)) for prompt, table in zip(prompts, tables, strict=True)
    ]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    step = 0
    while any(len(rows) < num_tokens for rows in logits):
        step += 1
        active = [index for index in range(min(step, len(prompts))) if len(logits[index]) < num_tokens]
        pieces = [everyone[index].next_piece(chunk) for index in active]
        output = runner.forward(make_batch(pieces, block_size))
        for index, piece, row in zip(active, pieces, output, strict=True):
            sequence = everyone[index]
            sequence.computed += len(piece.tokens)
            if sequence.computed == len(sequence.tokens):
                logits[index].append(row)
                sequence.tokens.append(int(row.argmax()))
    return [
        (sequence.tokens[sequence.prompt_len :], torch.stack(rows))
        for sequence, rows in zip(everyone, logits, strict=True)
    ]
