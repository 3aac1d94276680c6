"""Cases for the kernels that work token by token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.cases.case import Case, Comparison
from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.paged import BLOCK_SIZE
from kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from kernels.checksum_blocks import checksum_blocks, checksum_blocks_reference
from kernels.copy_blocks import (
    gather_blocks,
    gather_blocks_reference,
    scatter_blocks,
    scatter_blocks_reference,
)
from kernels.gated_activation import gated_activation, gated_activation_reference
from kernels.rope_store_kv import rope_store_kv, rope_store_kv_reference
from kernels.store_kv import store_kv, store_kv_reference

TOKENS = 100
NUM_BLOCKS = 20
WIDTHS = (64, 1000, 4096)
HEADS = ((64, 8, 8), (80, 4, 4), (128, 32, 8), (256, 8, 1))
"""(head_dim, q heads, KV heads)"""


class ElementwiseCases:
    """All cases, from one source of random numbers."""

    def __init__(self, bench: Bench, generator: torch.Generator) -> None:
        self._bench = bench
        self._generator = generator
        self._randn = partial(bench.randn, generator)

    def __iter__(self) -> Iterator[Case]:
        for head_dim, q_heads, kv_heads in HEADS:
            what = f"{head_dim} × {q_heads}/{kv_heads}"
            yield Case("store_kv", what, self._store(kv_heads, head_dim))
            for is_normed in (False, True):
                name = f"{what}{', heads normed' * is_normed}"
                yield Case("rope_store_kv", name, self._rope(q_heads, kv_heads, head_dim, is_normed))
        for width in WIDTHS:
            for is_added in (False, True):
                yield Case("add_rms_norm", f"{width}{', added' * is_added}", self._norm(width, is_added))
            for activation in ("silu", "gelu_pytorch_tanh", "gelu"):
                yield Case("gated_activation", f"{width}, {activation}", self._gated(width, activation))
        yield Case("copy_blocks", "gathered", self._gather())
        yield Case("copy_blocks", "scattered", self._scatter())
        yield Case("checksum_blocks", "of seven", self._checksum())

    def _slots(self) -> Tensor:
        order = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, generator=self._generator, device=self._bench.device)
        slots = order[:TOKENS].clone()
        slots[::7] = -1
        return slots

    def _pools(self, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        pool = self._randn(NUM_BLOCKS, 2, BLOCK_SIZE, kv_heads, head_dim)
        return pool, pool.clone()

    def _store(self, kv_heads: int, head_dim: int) -> Comparison:
        pool, expected = self._pools(kv_heads, head_dim)
        key, value, slots = (
            self._randn(TOKENS, kv_heads, head_dim),
            self._randn(TOKENS, kv_heads, head_dim),
            self._slots(),
        )

        def run() -> tuple[Tensor, Tensor]:
            store_kv(key, value, pool, slots)
            store_kv_reference(key, value, expected, slots)
            return pool, expected

        return run

    def _rope(self, q_heads: int, kv_heads: int, head_dim: int, is_normed: bool) -> Comparison:
        pool, expected = self._pools(kv_heads, head_dim)
        merged = self._randn(TOKENS, (q_heads + 2 * kv_heads) * head_dim)
        parts = torch.split(merged, [q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
        query, key, value = (part.view(TOKENS, -1, head_dim) for part in parts)
        angle = self._randn(TOKENS, head_dim // 2).float()
        cos, sin = (torch.cat((half, half), 1).to(self._bench.dtype) for half in (angle.cos(), angle.sin()))
        slots = self._slots()
        norms: dict[str, Any] = {}
        if is_normed:
            norms = {"query_norm": self._randn(head_dim), "key_norm": self._randn(head_dim)}

        def run() -> tuple[Tensor, Tensor]:
            rotated = rope_store_kv(query, key, value, cos, sin, pool, slots, **norms)
            stock = rope_store_kv_reference(query, key, value, cos, sin, expected, slots, **norms)
            return torch.cat((rotated.flatten(), pool.flatten())), torch.cat(
                (stock.flatten(), expected.flatten())
            )

        return run

    def _norm(self, width: int, is_added: bool) -> Comparison:
        x, weight = self._randn(TOKENS, width), self._randn(width)
        residual = self._randn(TOKENS, width) if is_added else None
        expected = None if residual is None else residual.clone()

        def run() -> tuple[Tensor, Tensor]:
            out = add_rms_norm(x, residual, weight, 1e-5)
            stock = add_rms_norm_reference(x, expected, weight, 1e-5)
            if residual is None or expected is None:
                return out, stock
            return torch.cat((out, residual)), torch.cat((stock, expected))

        return run

    def _gated(self, width: int, activation: str) -> Comparison:
        gate_up = self._randn(TOKENS, 2 * width)
        return lambda: (
            gated_activation(gate_up, activation),
            gated_activation_reference(gate_up, activation),
        )

    def _gather(self) -> Comparison:
        pool, _ = self._pools(4, 64)
        blocks = torch.randperm(NUM_BLOCKS, generator=self._generator, device=self._bench.device)[:7]

        def run() -> tuple[Tensor, Tensor]:
            out, expected = torch.empty_like(pool[:7]), torch.empty_like(pool[:7])
            gather_blocks(pool, blocks, out)
            gather_blocks_reference(pool, blocks, expected)
            return out, expected

        return run

    def _scatter(self) -> Comparison:
        pool, expected = self._pools(4, 64)
        source = self._randn(*pool[:7].shape)
        blocks = torch.randperm(NUM_BLOCKS, generator=self._generator, device=self._bench.device)[:7]

        def run() -> tuple[Tensor, Tensor]:
            scatter_blocks(source, pool, blocks)
            scatter_blocks_reference(source, expected, blocks)
            return pool, expected

        return run

    def _checksum(self) -> Comparison:
        pool, _ = self._pools(4, 64)
        blocks = torch.randperm(NUM_BLOCKS, generator=self._generator, device=self._bench.device)[:7]
        return lambda: (checksum_blocks(pool, blocks), checksum_blocks_reference(pool, blocks))
