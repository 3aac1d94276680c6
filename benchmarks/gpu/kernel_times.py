"""Time each kernel beside its floor: its bytes or its products, at the ceilings of this run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu import anchors
from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.paged import BLOCK_SIZE, PagedKV, paged
from benchmarks.gpu.setting.timing import Call, median_s
from kernels.add_rms_norm import add_rms_norm
from kernels.checksum_blocks import checksum_blocks
from kernels.chunked_prefill import chunked_prefill
from kernels.copy_blocks import gather_blocks
from kernels.gated_activation import gated_activation
from kernels.paged_decode import paged_decode
from kernels.rope_store_kv import rope_store_kv
from reporting.section import Goal, Section, markdown

NUM_SETS = 4
"""Input sets that take turns: together they exceed any cache."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel to time. `calls` do the same with several input sets; `floor_s` is the time of one at the
    ceilings.
    """

    name: str
    calls: list[Call]
    floor_s: float
    goal: float | None = None
    """The least share of the ceiling."""


def measure(bench: Bench) -> Section:
    """Time every kernel at every size."""
    rows, goals, data = [], [], {}
    for timed in _timed(bench):
        took = median_s(timed.calls, bench.device)
        share = timed.floor_s / took
        data[timed.name] = {"seconds": took, "floor_s": timed.floor_s}
        bench.found[timed.name] = share
        rows.append((timed.name, f"{timed.floor_s * 1e6:.1f}", f"{took * 1e6:.1f}", f"{share:.0%}"))
        if timed.goal is not None:
            goals.append(Goal(f"{timed.name}, share of the read rate", (share,), timed.goal, spec=".0%"))
        bench.release()
    table = markdown(("kernel", "floor, µs", "here, µs", "share of the ceiling"), rows)
    method = f"Medians of graph replays over {NUM_SETS} input sets, {bench.dtype}, one layer of the model."
    return Section("Kernels", method, bench.goals(*goals), (table,), {"kernels": data})


def _timed(bench: Bench) -> Iterator[Timed]:
    for batch, context in bench.sizes.kernel_batches:
        yield _paged_decode(bench, batch, context)
    yield _chunked_prefill(bench)
    yield _rope_store_kv(bench)
    yield _add_rms_norm(bench)
    yield _gated_activation(bench)
    yield _gather_blocks(bench)
    yield _checksum_blocks(bench)


def _kv(bench: Bench, lengths: list[int], generator: torch.Generator) -> PagedKV:
    model = bench.sizes.model
    return paged(lengths, model.kv_heads, model.head_dim, bench.dtype, generator)


def _paged_decode(bench: Bench, batch: int, context: int) -> Timed:
    generator, model = bench.generator(), bench.sizes.model
    calls: list[Call] = []
    for _ in range(NUM_SETS):
        kv = _kv(bench, [context] * batch, generator)
        query = bench.randn(generator, batch, model.q_heads, model.head_dim)
        calls.append(partial(paged_decode, query, *kv.arguments, scale=model.head_dim**-0.5))
    num_bytes = batch * context * model.kv_bytes_per_token / model.layers
    name = f"paged_decode, {batch} × {context}"
    return Timed(name, calls, num_bytes / bench.limits.read, anchors.DECODE_KERNEL_GOAL)


def _chunked_prefill(bench: Bench) -> Timed:
    generator, model, tokens = bench.generator(), bench.sizes.model, bench.sizes.kernel_tokens
    starts = torch.tensor([0, tokens], device=bench.device, dtype=torch.int32)
    calls: list[Call] = []
    for _ in range(NUM_SETS):
        kv = _kv(bench, [tokens], generator)
        query = bench.randn(generator, tokens, model.q_heads, model.head_dim)
        calls.append(partial(chunked_prefill, query, *kv.arguments, starts, scale=model.head_dim**-0.5))
    floor_s = model.attention_flops(tokens) / model.layers / bench.limits.matrix
    return Timed(f"chunked_prefill, 1 × {tokens}", calls, floor_s)


def _rope_store_kv(bench: Bench) -> Timed:
    generator, model, tokens = bench.generator(), bench.sizes.model, bench.sizes.kernel_tokens
    calls: list[Call] = []
    for _ in range(NUM_SETS):
        kv = _kv(bench, [tokens], generator)
        query, key, value = (
            bench.randn(generator, tokens, heads, model.head_dim)
            for heads in (model.q_heads, model.kv_heads, model.kv_heads)
        )
        cos, sin = (bench.randn(generator, tokens, model.head_dim) for _ in range(2))
        slots = torch.randperm(tokens, generator=generator, device=bench.device)
        calls.append(partial(rope_store_kv, query, key, value, cos, sin, kv.kv_layer, slots))
    moved = tokens * model.head_dim * model.element_bytes * (2 * model.q_heads + 4 * model.kv_heads + 2)
    return Timed(f"rope_store_kv, {tokens}", calls, moved / bench.limits.copy)


def _add_rms_norm(bench: Bench) -> Timed:
    generator, model, tokens = bench.generator(), bench.sizes.model, bench.sizes.kernel_tokens
    weight = bench.randn(generator, model.hidden)
    calls: list[Call] = []
    for _ in range(NUM_SETS):
        x, residual = (bench.randn(generator, tokens, model.hidden) for _ in range(2))
        calls.append(partial(add_rms_norm, x, residual, weight, 1e-5))
    moved = 4 * tokens * model.hidden * model.element_bytes
    return Timed(f"add_rms_norm, {tokens}", calls, moved / bench.limits.copy)


def _gated_activation(bench: Bench) -> Timed:
    generator, model, tokens = bench.generator(), bench.sizes.model, bench.sizes.kernel_tokens
    calls: list[Call] = [
        partial(gated_activation, bench.randn(generator, tokens, 2 * model.intermediate), "silu")
        for _ in range(NUM_SETS)
    ]
    moved = 3 * tokens * model.intermediate * model.element_bytes
    return Timed(f"gated_activation, {tokens}", calls, moved / bench.limits.copy)


def _gather_blocks(bench: Bench) -> Timed:
    pool, sets = _handed_over(bench)
    num_blocks = len(sets[0])
    out = torch.empty_like(pool[:num_blocks])
    calls: list[Call] = [partial(gather_blocks, pool, blocks, out) for blocks in sets]
    return Timed(f"gather_blocks, {num_blocks}", calls, 2 * out.nbytes / bench.limits.copy)


def _checksum_blocks(bench: Bench) -> Timed:
    pool, sets = _handed_over(bench)
    num_blocks = len(sets[0])
    calls: list[Call] = [partial(checksum_blocks, pool, blocks) for blocks in sets]
    return Timed(f"checksum_blocks, {num_blocks}", calls, num_blocks * pool[0].nbytes / bench.limits.read)


def _handed_over(bench: Bench) -> tuple[Tensor, list[Tensor]]:
    """Return a pool, and sets of its blocks that move together, as in a handoff."""
    generator, model = bench.generator(), bench.sizes.model
    num_blocks = max(1, bench.sizes.handoff_tokens // BLOCK_SIZE)
    shape = (model.layers, 2, BLOCK_SIZE, model.kv_heads, model.head_dim)
    pool = bench.randn(generator, 2 * num_blocks, *shape)
    draw = partial(torch.randperm, 2 * num_blocks, generator=generator, device=bench.device)
    return pool, [draw()[:num_blocks] for _ in range(NUM_SETS)]
