"""How many KV blocks fit into an engine's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.calibration.grid import Step
from engine.calibration.sweep import make_batch
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.model import Model
from engine.model.parallel.joining import alone

MEBIBYTE = 1024 * 1024
CPU_MEBIBYTES = 256
"""Default on a CPU, whose memory other processes need too."""
KV_SHARE = 0.9
"""Share of the memory that weights and the largest step leave. The rest is for recorded decode steps with
their logits, for sampling and the counts of penalties, and for fragmentation."""


class CudaMemory:
    """The memory of a GPU, as the driver and torch count it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_bytes(self) -> int:
        """Return the bytes that are free on the whole device."""
        torch.cuda.empty_cache()  # torch keeps freed memory, which the driver counts as used
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Run `work`; return the most bytes that it had allocated at any moment."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def blocks_in(block_bytes: int, mebibytes: int) -> int:
    """Return how many blocks fit into so much memory. Raises ValueError if none does."""
    num_blocks = mebibytes * MEBIBYTE // block_bytes
    if num_blocks == 0:
        least = -(-block_bytes // MEBIBYTE)
        raise ValueError(f"--kv-memory-mb is {mebibytes}; accepted for this model: {least} or more")
    return num_blocks


def blocks_that_fit(
    model: Model,
    layout: BlockLayout,
    memory: CudaMemory,
    *,
    max_num_seqs: int,
    token_budget: int,
    draft_block_bytes: int = 0,
) -> int:
    """Return how many blocks fit into KV_SHARE of the memory that weights and the largest step leave.

    Each takes `draft_block_bytes` more in the pool of a draft model.
    """
    block_bytes = layout.block_bytes + draft_block_bytes
    step_bytes = _largest_step_bytes(model, layout, memory, max_num_seqs, token_budget)
    free_bytes = memory.free_bytes()
    num_blocks = int((free_bytes - step_bytes) * KV_SHARE) // block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"--token-budget is {token_budget}, and such a step takes {step_bytes // MEBIBYTE} MiB; "
            f"accepted: less, as the weights leave {free_bytes // MEBIBYTE} MiB, which KV blocks of "
            f"{-(-block_bytes // MEBIBYTE)} MiB have to fit into as well"
        )
    return num_blocks


def _largest_step_bytes(
    model: Model, layout: BlockLayout, memory: CudaMemory, max_num_seqs: int, token_budget: int
) -> int:
    """Measure a step of `token_budget` tokens with as many rows of logits as possible.

    It runs over a temporary pool, just large enough for its chunk.
    """
    num_decodes = min(max_num_seqs, token_budget) - 1
    chunk = min(token_budget - num_decodes, model.facts.max_context)
    pool = KVPool(layout, -(-chunk // layout.block_size), model.device)
    runner = ModelRunner(model, pool)
    batch = make_batch(runner, Step(num_decodes, 1, (0, chunk)))
    with alone(model.module, model.cuts):
        num_bytes = memory.peak_bytes(lambda: runner.forward(batch))
    pool.close()
    return num_bytes
