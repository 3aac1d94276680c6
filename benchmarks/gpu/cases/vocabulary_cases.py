"""Cases for the kernels that choose tokens, and for products whose bits do not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu.cases.case import Case, Comparison
from benchmarks.gpu.setting.bench import Bench
from kernels.invariant_linear import invariant_linear, invariant_linear_reference
from kernels.logit_rows.arguments import Way
from kernels.sample_rows import sample_rows, sample_rows_reference
from kernels.top_logits import top_logits, top_logits_reference

ROWS = 64
TOP = 20
FILTERS: dict[str, dict[Way, float]] = {
    "as they are": {},
    "top-k": {Way.TOP_K: 50},
    "top-p": {Way.TOP_P: 0.9},
    "min-p": {Way.MIN_P: 0.05},
    "all filters": {Way.TOP_K: 200, Way.TOP_P: 0.95, Way.MIN_P: 0.01},
}
PRODUCTS = ((1, 256, 512), (33, 1000, 300), (200, 512, 1024))
"""(rows, inputs, outputs)"""


def vocabulary_cases(bench: Bench, generator: torch.Generator) -> Iterator[Case]:
    """Yield all cases, from one source of random numbers."""
    for name, filters in FILTERS.items():
        yield Case("sample_rows", name, _sample(bench, generator, filters))
    yield Case("top_logits", f"{TOP}", _top(bench, generator))
    for rows, inputs, outputs in PRODUCTS:
        x, weight = bench.randn(generator, rows, inputs), bench.randn(generator, outputs, inputs)
        yield Case("invariant_linear", f"{rows} × {inputs} × {outputs}", _product(x, weight))


def _logits(bench: Bench, generator: torch.Generator) -> Tensor:
    shape = (ROWS, bench.sizes.model.vocab)
    return (torch.randn(shape, generator=generator, device=bench.device) * 3).to(bench.dtype)


def _sample(bench: Bench, generator: torch.Generator, filters: dict[Way, float]) -> Comparison:
    """Return a case that compares, row by row, whether the token is the reference's: 1 if it is."""
    logits = _logits(bench, generator)
    ways = torch.zeros(len(Way), ROWS, dtype=torch.float64, device=bench.device)
    for way, value in ({Way.TEMPERATURE: 0.8, Way.TOP_P: 1.0, Way.REPETITION: 1.0} | filters).items():
        ways[way] = value
    ways[Way.NOISE] = (
        torch.rand(ROWS, generator=generator, device=bench.device).double().clamp(1e-6, 1 - 1e-6)
    )

    def run() -> tuple[Tensor, Tensor]:
        drawn = sample_rows(logits, ways).token_ids
        expected, _, _ = sample_rows_reference(logits, ways)
        return (drawn == expected).float(), torch.ones(ROWS, device=bench.device)

    return run


def _top(bench: Bench, generator: torch.Generator) -> Comparison:
    logits = _logits(bench, generator)
    return lambda: (top_logits(logits, TOP)[0], top_logits_reference(logits, TOP)[0])


def _product(x: Tensor, weight: Tensor) -> Comparison:
    return lambda: (invariant_linear(x, weight), invariant_linear_reference(x, weight))
