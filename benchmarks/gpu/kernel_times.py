"""Time each kernel beside its floor: its bytes or its products, at the ceilings of this run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from benchmarks.gpu.anchors import READ_SHARE
from benchmarks.gpu.bench import Bench, Columns
from benchmarks.gpu.kernel_calls import KernelCall, KernelCalls
from benchmarks.gpu.sizes import BLOCK_SIZE, KEYS_AND_VALUES
from benchmarks.gpu.timing import median_s
from sim.reporting.section import Section

NUM_SETS = 4
"""Input sets that take turns: together they exceed any cache."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel to time: `draw` returns a call with its own inputs, `floor_s` is its time at the ceilings."""

    name: str
    draw: Callable[[], KernelCall]
    floor_s: float
    figure: str = ""
    """The name under which the share of the ceiling is a figure; without one it is not."""


def measure(bench: Bench) -> Section:
    """Time every kernel at every size."""
    times, figures = {}, {}
    for timed in _timed(bench):
        calls = [timed.draw().run for _ in range(NUM_SETS)]
        took_s = median_s(calls, bench.device)
        del calls
        bench.release()
        times[timed.name] = {"seconds": took_s, "floor_s": timed.floor_s}
        if timed.figure:
            figures[timed.figure] = timed.floor_s / took_s
    columns: Columns = {
        "kernel": itemgetter("name"),
        "floor, µs": lambda kernel: f"{kernel['floor_s'] * 1e6:.1f}",
        "here, µs": lambda kernel: f"{kernel['seconds'] * 1e6:.1f}",
        "share of the ceiling": lambda kernel: f"{kernel['floor_s'] / kernel['seconds']:.0%}",
    }
    method = f"Medians of graph replays over {NUM_SETS} input sets, {bench.dtype}, one layer of the model."
    return bench.section("Kernels", method, columns, {"kernels": times}, figures)


def _timed(bench: Bench) -> Iterator[Timed]:
    sizes, limits, calls = bench.sizes, bench.limits, KernelCalls(bench)
    model, heads, tokens = sizes.model, sizes.model.heads, sizes.kernel_tokens
    for batch, context in sizes.kernel_batches:
        name = f"paged_decode, {batch} × {context}"
        floor_s = batch * context * model.kv_bytes_per_token / model.layers / limits.read
        yield Timed(name, partial(calls.attention, heads, [context] * batch), floor_s, name + READ_SHARE)
    floor_s = model.attention_flops(tokens) / model.layers / limits.matrix
    chunk = partial(calls.attention, heads, [tokens], [tokens])
    yield Timed(f"chunked_prefill, 1 × {tokens}", chunk, floor_s)

    row_s = tokens * model.element_bytes / limits.copy
    """The time to copy one number of each token."""
    rope_s = row_s * heads.dim * (2 * heads.query + 4 * heads.kv + 2)
    yield Timed(f"rope_store_kv, {tokens}", partial(calls.rope_store_kv, heads, tokens), rope_s)
    norm = partial(calls.add_rms_norm, tokens, model.hidden)
    yield Timed(f"add_rms_norm, {tokens}", norm, row_s * 4 * model.hidden)
    activation = partial(calls.gated_activation, tokens, model.intermediate)
    yield Timed(f"gated_activation, {tokens}", activation, row_s * 3 * model.intermediate)

    moved = max(1, sizes.handoff_tokens // BLOCK_SIZE)
    pool = (2 * moved, model.layers, KEYS_AND_VALUES, BLOCK_SIZE, heads.kv, heads.dim)
    num_bytes = moved * BLOCK_SIZE * model.kv_bytes_per_token
    gather_s, checksum_s = 2 * num_bytes / limits.copy, num_bytes / limits.read
    yield Timed(f"gather_blocks, {moved}", partial(calls.gather_blocks, pool, moved), gather_s)
    yield Timed(f"checksum_blocks, {moved}", partial(calls.checksum_blocks, pool, moved), checksum_s)
