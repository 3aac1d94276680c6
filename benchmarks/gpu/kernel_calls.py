"""Calls of every kernel with random arguments of any size: `correctness` compares them, `kernel_times` times
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.sizes import BLOCK_SIZE, KEYS_AND_VALUES, Heads
from kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from kernels.checksum_blocks import checksum_blocks, checksum_blocks_reference
from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.copy_blocks import (
    gather_blocks,
    gather_blocks_reference,
    scatter_blocks,
    scatter_blocks_reference,
)
from kernels.gated_activation import gated_activation, gated_activation_reference
from kernels.int8_linear import int8_linear, int8_linear_reference
from kernels.invariant_linear import invariant_linear, invariant_linear_reference
from kernels.logit_rows.arguments import Way
from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.rope_store_kv import HeadNorms, rope_store_kv, rope_store_kv_reference
from kernels.sample_rows import sample_rows, sample_rows_reference
from kernels.store_kv import quantise, store_kv, store_kv_reference
from kernels.top_logits import top_logits, top_logits_reference

NUM_SPLITS = 3
"""Programs that share a decode's spans."""
PADDING = 7
"""Every so many tokens one is padding, which has no slot."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, its reference, and arguments for either; `writes` are the places of those written to."""

    op: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    writes: tuple[int, ...] = ()

    def run(self) -> object:
        return self.kernel(*self.args, **self.keywords)

    def error(self) -> float:
        """Return ‖out - expected‖ / ‖expected‖ of all that is returned or written; NaN if a value is NaN."""
        out, expected = self._result(self.kernel), self._result(self.reference)
        return float((out - expected).norm() / expected.norm().clamp(min=1e-30))

    def _result(self, compute: Callable[..., Any]) -> Tensor:
        args = [arg.clone() if place in self.writes else arg for place, arg in enumerate(self.args)]
        returned = compute(*args, **self.keywords)
        results = [*([returned] if returned is not None else []), *(args[place] for place in self.writes)]
        return torch.cat([result.double().flatten() for result in results])


class KernelCalls:
    """Draws calls from one source of random numbers."""

    def __init__(self, bench: Bench) -> None:
        self._device, self._dtype = bench.device, bench.dtype
        self._generator = torch.Generator(device=bench.device).manual_seed(bench.seed)

    def attention(
        self,
        heads: Heads,
        lengths: Sequence[int],
        chunks: Sequence[int] | None = None,
        *,
        span: int | None = None,
        stored: torch.dtype | None = None,
        **features: Any,
    ) -> KernelCall:
        """Call `chunked_prefill` for chunks of sequences of these lengths, or else `paged_decode`."""
        kv, tables, context = self._paged_kv(heads, lengths)
        if features.get("sinks"):
            features["sinks"] = self._randn(heads.query).float()
        keywords: dict[str, Any] = {"softmax": Softmax(heads.dim**-0.5, **features)}
        if stored is not None:
            kv, scales = quantise(kv, stored)
            keywords["kv_scales"] = scales.transpose(2, 3).contiguous()
        query = self._randn(sum(chunks or [1] * len(lengths)), heads.query, heads.dim)
        args = (query, kv, tables, context)
        if chunks is None:
            return KernelCall("paged_decode", paged_decode, _widened(paged_decode_reference), args, keywords)
        starts = torch.tensor([0, *accumulate(chunks)], device=self._device, dtype=torch.int32)
        kernel = partial(chunked_prefill, span=span, num_splits=span and NUM_SPLITS)
        reference = _widened(chunked_prefill_reference)
        return KernelCall("chunked_prefill", kernel, reference, (*args, starts), keywords)

    def store_kv(self, heads: Heads, tokens: int, stored: torch.dtype | None = None) -> KernelCall:
        kv = self._kv_layer(heads, tokens)
        scales = []
        if stored is not None:
            kv, scale = quantise(kv, stored)
            scales = [scale.transpose(2, 3).contiguous()]
        key, value = (self._randn(tokens, heads.kv, heads.dim) for _ in range(2))
        args = (key, value, kv, self._slots(tokens, padded=True), *scales)
        return KernelCall("store_kv", store_kv, store_kv_reference, args, writes=(2, 4)[: len(args) - 3])

    def rope_store_kv(
        self, heads: Heads, tokens: int, *, normed: bool = False, padded: bool = False
    ) -> KernelCall:
        widths = [count * heads.dim for count in (heads.query, heads.kv, heads.kv)]
        parts = torch.split(self._randn(tokens, sum(widths)), widths, dim=1)
        angle = self._randn(tokens, heads.dim // 2).float().repeat(1, 2)
        cos, sin = angle.cos().to(self._dtype), angle.sin().to(self._dtype)
        norms = {"norms": HeadNorms(self._randn(heads.dim), self._randn(heads.dim))} if normed else {}
        query_key_value = [part.view(tokens, -1, heads.dim) for part in parts]
        slots = self._slots(tokens, padded=padded)
        args = (*query_key_value, cos, sin, self._kv_layer(heads, tokens), slots)
        return KernelCall("rope_store_kv", rope_store_kv, rope_store_kv_reference, args, norms, writes=(5,))

    def add_rms_norm(self, tokens: int, width: int, *, added: bool = True) -> KernelCall:
        residual = self._randn(tokens, width) if added else None
        args = (self._randn(tokens, width), residual, self._randn(width), 1e-5)
        writes = (1,) if added else ()
        return KernelCall("add_rms_norm", add_rms_norm, add_rms_norm_reference, args, writes=writes)

    def gated_activation(self, tokens: int, width: int, activation: str = "silu") -> KernelCall:
        args = (self._randn(tokens, 2 * width), activation)
        return KernelCall("gated_activation", gated_activation, gated_activation_reference, args)

    def gather_blocks(self, pool: tuple[int, ...], count: int) -> KernelCall:
        """Gather blocks of a pool of this shape [num_blocks, ...]."""
        out = torch.zeros(count, *pool[1:], device=self._device, dtype=self._dtype)
        args = (self._randn(*pool), self._permutation(pool[0])[:count], out)
        return KernelCall("gather_blocks", gather_blocks, gather_blocks_reference, args, writes=(2,))

    def scatter_blocks(self, pool: tuple[int, ...], count: int) -> KernelCall:
        args = (self._randn(count, *pool[1:]), self._randn(*pool), self._permutation(pool[0])[:count])
        return KernelCall("scatter_blocks", scatter_blocks, scatter_blocks_reference, args, writes=(1,))

    def checksum_blocks(self, pool: tuple[int, ...], count: int) -> KernelCall:
        args = (self._randn(*pool), self._permutation(pool[0])[:count])
        return KernelCall("checksum_blocks", checksum_blocks, checksum_blocks_reference, args)

    def sample_rows(self, rows: int, vocab: int, filters: dict[Way, float]) -> KernelCall:
        """Compare, row by row, whether the token is the reference's: 1 if it is."""
        ways = torch.zeros(len(Way), rows, dtype=torch.float64, device=self._device)
        for way, value in ({Way.TEMPERATURE: 0.8, Way.TOP_P: 1.0, Way.REPETITION: 1.0} | filters).items():
            ways[way] = value
        ways[Way.NOISE] = torch.rand(rows, generator=self._generator, device=self._device).double()
        ways[Way.NOISE].clamp_(1e-6, 1 - 1e-6)

        def is_the_same(logits: Tensor) -> Tensor:
            return sample_rows(logits, ways).token_ids == sample_rows_reference(logits, ways)[0]

        def always(logits: Tensor) -> Tensor:
            return torch.ones(len(logits), device=self._device)

        return KernelCall("sample_rows", is_the_same, always, (3 * self._randn(rows, vocab),))

    def top_logits(self, rows: int, vocab: int, count: int) -> KernelCall:
        def values(choose: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
            return lambda *args: choose(*args)[0]

        args = (3 * self._randn(rows, vocab), count)
        return KernelCall("top_logits", values(top_logits), values(top_logits_reference), args)

    def invariant_linear(self, rows: int, inputs: int, outputs: int) -> KernelCall:
        args = (self._randn(rows, inputs), self._randn(outputs, inputs))
        return KernelCall("invariant_linear", invariant_linear, invariant_linear_reference, args)

    def int8_linear(self, rows: int, inputs: int, outputs: int) -> KernelCall:
        weight = self._randn(outputs, inputs).mul(40).clamp(-127, 127).to(torch.int8)
        args = (self._randn(rows, inputs), weight, self._randn(outputs).abs(), None)
        return KernelCall("int8_linear", int8_linear, int8_linear_reference, args)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device).to(self._dtype)

    def _permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator, device=self._device)

    def _kv_layer(self, heads: Heads, tokens: int) -> Tensor:
        """Return a layer with more blocks than these tokens need."""
        return self._randn(2 + tokens // BLOCK_SIZE, KEYS_AND_VALUES, BLOCK_SIZE, heads.kv, heads.dim)

    def _slots(self, tokens: int, *, padded: bool) -> Tensor:
        slots = self._permutation((2 + tokens // BLOCK_SIZE) * BLOCK_SIZE)[:tokens]
        if padded:
            slots[::PADDING] = -1
        return slots

    def _paged_kv(self, heads: Heads, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return a layer [num_blocks, 2, block_size, kv_heads, head_dim], block tables and context lengths.

        Blocks are in any order, and NaN where nothing is stored.
        """
        context = torch.tensor(lengths, device=self._device, dtype=torch.int32)
        width = -(-max(lengths) // BLOCK_SIZE)
        tables = 1 + self._permutation(len(lengths) * width).view(len(lengths), width)
        kv = self._randn(1 + tables.numel(), KEYS_AND_VALUES, BLOCK_SIZE, heads.kv, heads.dim)
        position = torch.arange(width * BLOCK_SIZE, device=self._device).view(width, BLOCK_SIZE)
        is_free = (position >= context.view(-1, 1, 1)).view(-1, 1, BLOCK_SIZE, 1, 1)
        kv[tables.flatten()] = kv[tables.flatten()].masked_fill(is_free, float("nan"))
        return kv, tables.to(torch.int32), context


def _widened(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the reference with 16-bit arguments widened to float32."""

    def compute(*args: Tensor, **keywords: Any) -> Tensor:
        wide = [arg.float() if arg.dtype in (torch.bfloat16, torch.float16) else arg for arg in args]
        return reference(*wide, **keywords)

    return compute
