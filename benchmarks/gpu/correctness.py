"""Compare every kernel with its reference: fresh random inputs, outputs poisoned with NaN, all kinds of
heads.

The reference computes on the same device from the same 16-bit inputs, widened to float32. The error is ‖out -
reference‖ / ‖reference‖; rounding the result alone makes a few thousandths in bfloat16.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.kernel_calls import KernelCall, KernelCalls
from benchmarks.gpu.sizes import BLOCK_SIZE, KEYS_AND_VALUES, Heads
from kernels.launch import KV_LIMITS
from kernels.logit_rows.arguments import Way
from kernels.paged_attention.kernel import MAX_TILE
from sim.reporting.section import Section, table

MOST = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
LENGTHS = (1, 17, 300, 1000)
DECODES = (1, 1, 1, 1)
MIXED = (1, 16, 150, 1)
"""Tokens of each sequence in a step: decodes alone, and among chunks."""
COMMONEST = Heads(128, 32, 8)
HEADS = (Heads(64, 8, 8), Heads(80, 4, 4), COMMONEST, Heads(128, 16, 1), Heads(256, 8, 1))
"""Sizes 64 to 256, and 1 to 16 query heads for each KV head."""
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"sliding_window": 100},
    {"softcap": 5.0},
    {"sinks": True},
    {"sliding_window": 100, "softcap": 5.0, "sinks": True},
)
PLAIN_AND_ALL = FEATURES[0], FEATURES[-1]
TOKENS = 100
WIDTHS = (64, 1000, 4096)
POOL = (20, KEYS_AND_VALUES, BLOCK_SIZE, 4, 64)
MOVED = 7
"""Blocks that are copied or summed up."""
ROWS, TOP = 64, 20
FILTERS: dict[str, dict[Way, float]] = {
    "as they are": {},
    "top-k": {Way.TOP_K: 50},
    "top-p": {Way.TOP_P: 0.9},
    "min-p": {Way.MIN_P: 0.05},
    "all filters": {Way.TOP_K: 200, Way.TOP_P: 0.95, Way.MIN_P: 0.01},
}
INVARIANT_PRODUCTS = ((1, 256, 512), (33, 1000, 300), (200, 512, 1024))
INT8_PRODUCTS = ((1, 4096, 512), (33, 1024, 304), (200, 512, 1024))
"""(rows, inputs, outputs)"""

Cases = Iterator[tuple[str, KernelCall]]


def check(bench: Bench) -> Section:
    """Check all cases; raise AssertionError naming those that are off."""
    errors: defaultdict[str, list[float]] = defaultdict(list)
    off = []
    most = MOST[bench.dtype]
    for what, call in cases(bench):
        with _poisoned():
            error = call.error()
        errors[call.op].append(error)
        if not error <= most:  # a NaN is not
            off.append(f"{call.op} ({what}): {error:.2g}")
    assert not off, f"{len(off)} cases are off by more than {most:g}: {'; '.join(off[:5])}"
    columns = {
        "op": lambda op: op,
        "cases": lambda op: len(errors[op]),
        "largest relative error": lambda op: f"{max(errors[op]):.1e}",
    }
    method = f"{bench.dtype}, relative to the reference in float32; accepted: {most:g}."
    worst = {op: max(op_errors) for op, op_errors in errors.items()}
    return Section("Correctness", method, (), (table(errors, columns),), {"correctness": worst})


@contextlib.contextmanager
def _poisoned() -> Iterator[None]:
    """Make torch.empty return NaN, so that output which no kernel writes is found."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def cases(bench: Bench) -> Cases:
    """Yield what is special about each case, and the call."""
    calls = KernelCalls(bench)
    yield from _attention(calls)
    yield from _token_by_token(calls)
    yield from _blocks_and_logits(calls, bench.sizes.model.vocab)
    yield from _eight_bits(calls)


def _attention(calls: KernelCalls) -> Cases:
    """Yield each feature at the commonest size, none and all at the others: compiling takes a second each."""
    for heads in HEADS:
        for features in FEATURES if heads == COMMONEST else PLAIN_AND_ALL:
            what = f"{heads}, {', '.join(features) or 'plain'}"
            yield what, calls.attention(heads, LENGTHS, **features)
            yield what, calls.attention(heads, LENGTHS, MIXED, **features)
            if features in PLAIN_AND_ALL:
                for chunks in (DECODES, MIXED):
                    call = calls.attention(heads, LENGTHS, chunks, span=MAX_TILE, **features)
                    yield f"{what}, {chunks} in spans", call


def _token_by_token(calls: KernelCalls) -> Cases:
    for heads in HEADS:
        yield f"{heads}", calls.store_kv(heads, TOKENS)
        yield f"{heads}", calls.rope_store_kv(heads, TOKENS, padded=True)
        yield f"{heads}, heads normed", calls.rope_store_kv(heads, TOKENS, normed=True, padded=True)
    for width in WIDTHS:
        yield f"{width}", calls.add_rms_norm(TOKENS, width, added=False)
        yield f"{width}, added", calls.add_rms_norm(TOKENS, width)
    for width, activation in product(WIDTHS, ("silu", "gelu_pytorch_tanh", "gelu")):
        yield f"{width}, {activation}", calls.gated_activation(TOKENS, width, activation)


def _blocks_and_logits(calls: KernelCalls, vocab: int) -> Cases:
    for call in (calls.gather_blocks, calls.scatter_blocks, calls.checksum_blocks):
        yield f"{MOVED}", call(POOL, MOVED)
    for name, filters in FILTERS.items():
        yield name, calls.sample_rows(ROWS, vocab, filters)
    yield f"{TOP}", calls.top_logits(ROWS, vocab, TOP)
    for sizes in INVARIANT_PRODUCTS:
        yield f"{sizes}", calls.invariant_linear(*sizes)


def _eight_bits(calls: KernelCalls) -> Cases:
    for stored in KV_LIMITS:
        yield f"{stored}", calls.attention(COMMONEST, LENGTHS, stored=stored)
        yield f"{stored}", calls.attention(COMMONEST, LENGTHS, MIXED, stored=stored)
        yield f"{stored}", calls.store_kv(COMMONEST, TOKENS, stored)
    for sizes in INT8_PRODUCTS:
        yield f"{sizes}", calls.int8_linear(*sizes)
