"""The limits of a machine, and the least time that a model's steps can take within them.

A decode step reads every weight that a token uses once, so it is not shorter than their bytes at the rate at
which all threads read memory. A prompt multiplies every token with the weights of each layer, so it is not
shorter than these operations at the rate of torch's product. Attention, which needs more of both, is not
counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.cpu.arms import Bits
from benchmarks.cpu.engines.loads import PREFILL_TOKENS
from engine.model.model import DTYPES

READ_BYTES = 1 << 30
"""Larger than the caches of most processors."""
MATRIX_ROWS, MATRIX_INNER, MATRIX_COLUMNS = PREFILL_TOKENS, 2048, 4096
PASSES = 7
FLOPS_PER_WEIGHT = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates of a machine, measured with all threads: the fastest of several passes."""

    read_bytes_per_s: float
    flops: dict[str, float]
    """By dtype."""


@dataclass(frozen=True, slots=True)
class Need:
    """The weights of a model that a token uses."""

    layer_weights: int
    """Weights of all layers, which each token of a prompt is multiplied with."""
    read_weights: int
    """Weights that a decode step reads: those of the layers and of the last product."""

    def decode_s(self, limits: Limits, dtype: str, bits: Bits) -> float:
        """Return the least time of a decode step of one sequence."""
        whole = DTYPES[dtype].itemsize * 8
        layer_bits, head_bits = (whole if each is None else each for each in (bits.layers, bits.head))
        head_weights = self.read_weights - self.layer_weights
        num_bits = self.layer_weights * layer_bits + head_weights * head_bits
        return num_bits / 8 / limits.read_bytes_per_s

    def prefill_s(self, limits: Limits, dtype: str) -> float:
        """Return the least time of the prompt; only its last token needs the last product."""
        return FLOPS_PER_WEIGHT * self.layer_weights * PREFILL_TOKENS / limits.flops[dtype]


def need_of(model: Path) -> Need:
    """Count the weights of a model without experts, from its config.json alone."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(model, local_files_only=True)
    with torch.device("meta"):
        module = library.AutoModelForCausalLM.from_config(config)
    embedding = module.get_input_embeddings().weight
    head = module.get_output_embeddings().weight
    # A tied embedding is one parameter, which the last product reads.
    ends = sum(weight.numel() for weight in {id(weight): weight for weight in (embedding, head)}.values())
    layers = sum(parameter.numel() for parameter in module.parameters()) - ends
    return Need(layers, layers + head.numel())


def measure_limits(dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> Limits:
    """Measure with as many threads as torch is set to."""
    return Limits(_read_rate(), {dtype: _matrix_rate(DTYPES[dtype]) for dtype in dtypes})


def _read_rate() -> float:
    side = 1 << 14
    matrix, vector = torch.ones(READ_BYTES // 4 // side, side), torch.ones(side)
    return READ_BYTES / _fastest(lambda: matrix @ vector)


def _matrix_rate(dtype: torch.dtype) -> float:
    rows = torch.randn(MATRIX_ROWS, MATRIX_INNER).to(dtype)
    weights = torch.randn(MATRIX_COLUMNS, MATRIX_INNER).to(dtype)
    flops = FLOPS_PER_WEIGHT * MATRIX_ROWS * MATRIX_INNER * MATRIX_COLUMNS
    return flops / _fastest(lambda: torch.nn.functional.linear(rows, weights))


@torch.inference_mode()
def _fastest(run: Callable[[], object]) -> float:
    run()
    times_s = []
    for _ in range(PASSES):
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)
