"""A step's batch as bytes, for followers. Its tensors are on the CPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.group.links import Bytes
from engine.model.attention.step_batch import StepBatch, adapter_rows

_COUNTS = struct.Struct("<7q")
"""T tokens, S sequences, max_blocks, R rows of logits, A slots of adapters (T, or 0 if no row has one),
num_decodes, max_context_len."""

_CPU = torch.device("cpu")
_NO_SLOTS = torch.empty(0, dtype=torch.int64)


def encoded(batch: StepBatch) -> list[Bytes]:
    """Return the parts of the bytes of a batch whose tokens are all known."""
    tables = batch.block_tables
    adapter_slots = _NO_SLOTS if batch.adapters is None else torch.from_numpy(batch.adapters.slots)
    counts = _COUNTS.pack(
        len(batch.token_ids), *tables.shape, len(batch.logit_rows), len(adapter_slots), batch.num_decodes,
        batch.max_context_len,
    )  # fmt: skip
    columns = (
        batch.token_ids, batch.positions, batch.slot_mapping, batch.logit_rows, adapter_slots, tables,
        batch.context_lens, batch.cu_seqlens_q,
    )  # fmt: skip
    return [counts, *(_bytes_of(column) for column in columns)]


def decoded(content: bytearray) -> StepBatch:
    """Return the batch of these bytes, over which its tensors are."""
    tokens, seqs, width, rows, adapted, num_decodes, max_context_len = _COUNTS.unpack_from(content)
    longs, ints = (tokens, tokens, tokens, rows, adapted), (seqs * width, seqs, seqs + 1)
    token_ids, positions, slots, logit_rows, adapter_slots, tables, lens, starts = _tensors(
        content, longs, ints
    )
    return StepBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        block_tables=tables.view(seqs, width),
        context_lens=lens,
        cu_seqlens_q=starts,
        logit_rows=logit_rows,
        num_decodes=num_decodes,
        max_context_len=max_context_len,
        adapters=adapter_rows(adapter_slots.numpy(), _CPU) if adapted else None,
    )


def _tensors(content: bytearray, longs: tuple[int, ...], ints: tuple[int, ...]) -> Iterator[Tensor]:
    at = _COUNTS.size
    for counts, dtype in ((longs, np.dtype(np.int64)), (ints, np.dtype(np.int32))):
        for count in counts:
            yield torch.from_numpy(np.frombuffer(content, dtype, count, at))
            at += count * dtype.itemsize


def _bytes_of(column: Tensor) -> memoryview:
    return column.contiguous().numpy().reshape(-1).view(np.uint8).data
