"""How many KV blocks an engine has: as many as it is told, or as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from engine.calibration.sweep import make_batch
from engine.calibration.sweep_grid import Step
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.model import Model

MEBIBYTE = 1024 * 1024
CPU_MEBIBYTES = 256
"""Where a device's memory is also everybody else's, nobody takes what is free."""
KV_SHARE = 0.9
"""Of what the weights and the largest step leave. The rest is for what comes later: recorded decode steps
with their logits, what sampling makes of a batch's logits, penalties' counts, and memory in pieces."""


class DeviceMemory(Protocol):
    """What is known of a device's memory."""

    def free_bytes(self) -> int:
        """What nobody has, on the whole device."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Runs `work`; the most that it had at any moment beyond what was there before."""


class CudaMemory:
    """`DeviceMemory` of a GPU, as the driver and torch count it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()  # torch keeps what was freed, and the driver counts it as taken
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    def peak_bytes(self, work: Callable[[], object]) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def blocks_in(layout: BlockLayout, mebibytes: int) -> int:
    """Blocks of `layout` in so much memory; ValueError if there is not one."""
    num_blocks = mebibytes * MEBIBYTE // layout.block_bytes
    if num_blocks == 0:
        least = -(-layout.block_bytes // MEBIBYTE)
        raise ValueError(f"--kv-memory-mb is {mebibytes}; accepted for this model: {least} or more")
    return num_blocks


def blocks_that_fit(
    model: Model, layout: BlockLayout, memory: DeviceMemory, *, max_num_seqs: int, token_budget: int
) -> int:
    """Blocks in KV_SHARE of what is free beside the weights and the largest step; ValueError without any."""
    step_bytes = _largest_step_bytes(model, layout, memory, max_num_seqs, token_budget)
    free_bytes = memory.free_bytes()
    num_blocks = int((free_bytes - step_bytes) * KV_SHARE) // layout.block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"--token-budget is {token_budget}, of which a step takes {step_bytes // MEBIBYTE} MiB; "
            f"accepted: less, as there are {free_bytes // MEBIBYTE} MiB beside the weights, for KV blocks of "
            f"{-(-layout.block_bytes // MEBIBYTE)} MiB too"
        )
    return num_blocks


def _largest_step_bytes(
    model: Model, layout: BlockLayout, memory: DeviceMemory, max_num_seqs: int, token_budget: int
) -> int:
    """Of a step of `token_budget` tokens that wants as many rows of logits as there can be.

    It runs over a pool of its own, just large enough for its chunk, which is gone afterwards.
    """
    num_decodes = min(max_num_seqs, token_budget) - 1
    chunk = min(token_budget - num_decodes, model.facts.max_context)
    pool = KVPool(layout, -(-chunk // layout.block_size), model.device)
    runner = ModelRunner(model, pool)
    batch = make_batch(runner, Step(num_decodes, 1, (0, chunk)))
    num_bytes = memory.peak_bytes(lambda: runner.forward(batch))
    pool.close()
    return num_bytes
