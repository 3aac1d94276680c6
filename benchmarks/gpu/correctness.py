"""Compare every kernel with its reference: fresh random inputs, outputs poisoned with NaN, all kinds of
heads.

The reference computes on the same device from the same 16-bit inputs, widened to float32. The error is ‖out -
reference‖ / ‖reference‖; rounding the result alone makes a few thousandths in bfloat16.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.cases.case import Case, Comparison
from benchmarks.gpu.cases.eight_bit_cases import EightBitCases
from benchmarks.gpu.cases.elementwise_cases import ElementwiseCases
from benchmarks.gpu.cases.vocabulary_cases import vocabulary_cases
from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.paged import PagedKV, paged
from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.paged_attention.kernel import MAX_TILE
from kernels.paged_decode import paged_decode, paged_decode_reference
from reporting.section import Section, markdown

MOST = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
LENGTHS = (1, 17, 300, 1000)
DECODES = (1, 1, 1, 1)
MIXED = (1, 16, 150, 1)
"""Tokens of each sequence in a step: decodes alone, and among chunks."""
NUM_SPLITS = 3
"""Programs that share a decode's spans."""
HEADS = ((64, 8, 8), (80, 4, 4), (128, 32, 8), (128, 16, 1), (256, 8, 1))
"""(head_dim, q heads, KV heads): sizes 64 to 256, and 1 to 16 query heads for each KV head."""
COMMONEST = 2
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"sliding_window": 100},
    {"softcap": 5.0},
    {"sinks": True},
    {"sliding_window": 100, "softcap": 5.0, "sinks": True},
)


def check(bench: Bench) -> Section:
    """Check all cases; raise AssertionError naming those that are off."""
    worst: dict[str, float] = {}
    counts: dict[str, int] = {}
    off = []
    for case in cases(bench):
        with _poisoned():
            out, expected = case.run()
        error = relative_error(out, expected)
        worst[case.op] = max(worst.get(case.op, 0.0), error)
        counts[case.op] = counts.get(case.op, 0) + 1
        if not error <= MOST[bench.dtype]:  # a NaN is not
            off.append(f"{case.op} ({case.what}): {error:.2g}")
    assert not off, f"{len(off)} cases are off by more than {MOST[bench.dtype]:g}: {'; '.join(off[:5])}"
    rows = [(op, f"{counts[op]}", f"{worst[op]:.1e}") for op in worst]
    table = markdown(("op", "cases", "largest relative error"), rows)
    method = f"{bench.dtype}, relative to the reference in float32; accepted: {MOST[bench.dtype]:g}."
    return Section("Correctness", method, (), (table,), {"correctness": worst})


def relative_error(out: Tensor, expected: Tensor) -> float:
    """Return ‖out - expected‖ / ‖expected‖; NaN if any value is not a number."""
    difference = (out.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))


@contextlib.contextmanager
def _poisoned() -> Iterator[None]:
    """Make torch.empty return NaN, so that output which no kernel writes is found."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases, which each have their own inputs."""
    generator = bench.generator()
    randn = partial(bench.randn, generator)
    for (head_dim, q_heads, kv_heads), features in _heads_and_features():
        kv = paged(LENGTHS, kv_heads, head_dim, bench.dtype, generator)
        arguments = _arguments(features, head_dim, q_heads, generator)
        what = f"{head_dim} × {q_heads}/{kv_heads}, {', '.join(features) or 'plain'}"
        yield Case("paged_decode", what, _decode(kv, arguments, randn(len(LENGTHS), q_heads, head_dim)))
        yield Case(
            "chunked_prefill", what, _prefill(kv, arguments, MIXED, randn(sum(MIXED), q_heads, head_dim))
        )
        if features in (FEATURES[0], FEATURES[-1]):
            for name, chunks in (("decodes", DECODES), ("mixed", MIXED)):
                query = randn(sum(chunks), q_heads, head_dim)
                in_spans = _prefill(kv, arguments, chunks, query, MAX_TILE)
                yield Case("chunked_prefill", f"{what}, {name} in spans", in_spans)
    yield from ElementwiseCases(bench, generator)
    yield from vocabulary_cases(bench, generator)
    yield from EightBitCases(bench, generator)


def _heads_and_features() -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
    """Yield each feature at the commonest size, none and all at the others: compiling takes a second each."""
    for heads in HEADS:
        for features in FEATURES if heads == HEADS[COMMONEST] else (FEATURES[0], FEATURES[-1]):
            yield heads, features


def _arguments(
    features: dict[str, Any], head_dim: int, q_heads: int, generator: torch.Generator
) -> dict[str, Any]:
    arguments = {"scale": head_dim**-0.5, **features}
    if "sinks" in arguments:
        arguments["sinks"] = torch.randn(q_heads, generator=generator, device=generator.device)
    return arguments


def _wide(kv: PagedKV) -> tuple[Tensor, Tensor, Tensor]:
    return kv.kv_layer.float(), kv.block_tables, kv.context_lens


def _decode(kv: PagedKV, arguments: dict[str, Any], query: Tensor) -> Comparison:
    return lambda: (
        paged_decode(query, *kv.arguments, **arguments),
        paged_decode_reference(query.float(), *_wide(kv), **arguments),
    )


def _prefill(
    kv: PagedKV, arguments: dict[str, Any], chunks: tuple[int, ...], query: Tensor, span: int | None = None
) -> Comparison:
    starts = torch.tensor([0, *itertools.accumulate(chunks)], device=kv.kv_layer.device, dtype=torch.int32)
    return lambda: (
        chunked_prefill(query, *kv.arguments, starts, span=span, num_splits=span and NUM_SPLITS, **arguments),
        chunked_prefill_reference(query.float(), *_wide(kv), starts, **arguments),
    )
