"""Pools of 8-bit KV with known content."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.kv.kv_pool import BlockLayout, KVPool
from kernels.store_kv import quantise
from tests.kernels.cases import LAYER, NUM_LAYERS, make_case

STORED = [torch.int8, torch.float8_e4m3fn]
# As bytes of an int8 value -1, as those of an fp8 value or a scale NaN.
POISON = 0xFF


@dataclass(frozen=True, slots=True)
class QuantisedCase:
    """One layer of a pool; every other byte of it is POISON, and unused table entries are out of range."""

    kv_layer: Tensor
    kv_scales: Tensor
    block_tables: Tensor
    context_lens: Tensor
    largest: float
    """Magnitude of the values that are stored."""

    def query(self, num_tokens: int, num_q_heads: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        shape = (num_tokens, num_q_heads, self.kv_layer.shape[-1])
        return torch.randn(shape, generator=generator).to(self.kv_layer.device, dtype)

    def paged(self) -> dict[str, Any]:
        return {
            "kv_layer": self.kv_layer,
            "kv_scales": self.kv_scales,
            "block_tables": self.block_tables,
            "context_lens": self.context_lens,
        }

    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the tolerance as `tests.kernels.cases.tolerance` does, with rounding to the query's dtype.

        Instead of the weights it is their products with the values' scales that are rounded.
        """
        return self.largest * (torch.finfo(dtype).eps + 32 * torch.finfo(torch.float32).eps)


def poisoned_pool(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    device: str = "cpu",
    stored: torch.dtype = torch.int8,
) -> KVPool:
    layout = BlockLayout(NUM_LAYERS, block_size, num_kv_heads, head_dim, torch.float32, stored)
    pool = KVPool(layout, num_blocks, torch.device(device))
    pool.tensor.fill_(POISON)
    return pool


def views_of(pool: KVPool) -> tuple[Tensor, Tensor]:
    """Values and scales of LAYER."""
    scales = pool.scales(LAYER)
    assert scales is not None
    return pool.layer(LAYER), scales


def multiplied_out(values: Tensor, scales: Tensor) -> Tensor:
    return values.float() * scales[..., None]


def step_at(numbers: Tensor, stored: torch.dtype) -> Tensor:
    """How far apart the numbers of an 8-bit dtype lie around these."""
    if stored == torch.int8:
        return torch.ones_like(numbers)
    exponents = torch.frexp(numbers).exponent - 1
    return torch.ldexp(torch.ones_like(numbers), exponents.clamp(min=-6) - 3)


def make_quantised_case(
    lengths: list[int],
    *,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    device: str = "cpu",
    stored: torch.dtype = torch.int8,
) -> QuantisedCase:
    case = make_case(lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size)
    pool = poisoned_pool(case.kv_layer.shape[0], block_size, num_kv_heads, head_dim, device, stored)
    kv_layer, kv_scales = views_of(pool)
    written = ~case.kv_layer.isnan().any(-1)
    values, scales = quantise(case.kv_layer, stored)
    kv_layer[written.to(device)] = values[written].to(device)
    kv_scales.transpose(2, 3)[written.to(device)] = scales[written].to(device)
    largest = max((float(value.abs().max()) for value in case.values if value.numel()), default=0.0)
    tables, context_lens = case.block_tables.to(device), case.context_lens.to(device)
    return QuantisedCase(kv_layer, kv_scales, tables, context_lens, largest)
