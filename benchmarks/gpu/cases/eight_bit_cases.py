"""Cases for the kernels that read or write 8 bits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.cases.case import Case, Comparison
from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.paged import PagedKV, paged
from kernels.checks import KV_LIMITS
from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.int8_linear import int8_linear, int8_linear_reference
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.store_kv import quantise, store_kv, store_kv_reference

LENGTHS = (1, 17, 300, 1000)
CHUNKS = (1, 16, 150, 1)
HEADS = (128, 32, 8)
"""head_dim, q heads, KV heads."""
PRODUCTS = ((1, 4096, 512), (33, 1024, 304), (200, 512, 1024))
"""(rows, inputs, outputs)"""
NUM_SLOTS = 100


class EightBitCases:
    """All cases, from one source of random numbers."""

    def __init__(self, bench: Bench, generator: torch.Generator) -> None:
        self._bench = bench
        self._generator = generator
        self._randn = partial(bench.randn, generator)

    def __iter__(self) -> Iterator[Case]:
        for stored in KV_LIMITS:
            name = str(stored).removeprefix("torch.")
            kv, scales = self._pool(stored)
            yield Case("paged_decode", name, self._decode(kv, scales))
            yield Case("chunked_prefill", name, self._prefill(kv, scales))
            yield Case("store_kv", name, self._store(kv, scales))
        for rows, inputs, outputs in PRODUCTS:
            yield Case("int8_linear", f"{rows} × {inputs} × {outputs}", self._linear(rows, inputs, outputs))

    def _pool(self, stored: torch.dtype) -> tuple[PagedKV, Tensor]:
        """Return KV in the stored type, and scales [num_blocks, 2, kv_heads, block_size]."""
        head_dim, _, kv_heads = HEADS
        kv = paged(LENGTHS, kv_heads, head_dim, self._bench.dtype, self._generator)
        values, scales = quantise(kv.kv_layer, stored)
        return dataclasses.replace(kv, kv_layer=values), scales.transpose(2, 3).contiguous()

    def _decode(self, kv: PagedKV, scales: Tensor) -> Comparison:
        head_dim, q_heads, _ = HEADS
        query, scale = self._randn(len(LENGTHS), q_heads, head_dim), head_dim**-0.5
        return lambda: (
            paged_decode(query, *kv.arguments, scale=scale, kv_scales=scales),
            paged_decode_reference(query.float(), *kv.arguments, scale=scale, kv_scales=scales),
        )

    def _prefill(self, kv: PagedKV, scales: Tensor) -> Comparison:
        head_dim, q_heads, _ = HEADS
        query, scale = self._randn(sum(CHUNKS), q_heads, head_dim), head_dim**-0.5
        begins = [0, *itertools.accumulate(CHUNKS)]
        starts = torch.tensor(begins, device=query.device, dtype=torch.int32)
        return lambda: (
            chunked_prefill(query, *kv.arguments, starts, scale=scale, kv_scales=scales),
            chunked_prefill_reference(query.float(), *kv.arguments, starts, scale=scale, kv_scales=scales),
        )

    def _store(self, kv: PagedKV, scales: Tensor) -> Comparison:
        head_dim, _, kv_heads = HEADS
        key, value = (self._randn(NUM_SLOTS, kv_heads, head_dim) for _ in range(2))
        slots = torch.randperm(NUM_SLOTS, generator=self._generator, device=key.device)
        ours, theirs = ((torch.zeros_like(kv.kv_layer), torch.zeros_like(scales)) for _ in range(2))

        def run() -> tuple[Tensor, Tensor]:
            store_kv(key, value, ours[0], slots, ours[1])
            store_kv_reference(key, value, theirs[0], slots, theirs[1])
            out, expected = (torch.cat((kept.float().flatten(), by.flatten())) for kept, by in (ours, theirs))
            return out, expected

        return run

    def _linear(self, rows: int, inputs: int, outputs: int) -> Comparison:
        x, scale = self._randn(rows, inputs), self._randn(outputs).abs()
        weight = torch.randint(
            -127, 128, (outputs, inputs), generator=self._generator, device=x.device, dtype=torch.int8
        )
        return lambda: (int8_linear(x, weight, scale), int8_linear_reference(x, weight, scale, None))
