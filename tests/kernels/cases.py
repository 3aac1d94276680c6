"""Paged pools with known content, as the ops meet them, and how far results may lie apart."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax

# Padding of a block table is arbitrary: an entry that were read would index far outside of the pool.
PADDING = 2**31 - 1
NUM_LAYERS = 3
LAYER = 1

# Every way that the softmax may differ, by test id; `sinks` is filled in per case.
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 20},
    "window_below_block": {"sliding_window": 3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 20, "softcap": 2.0, "sinks": True},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One layer of a pool that holds `keys[s]`, `values[s]` [context_len, num_kv_heads, head_dim] in pages.

    Every other slot of the pool holds NaN, and every unused table entry is out of range.
    """

    kv_layer: Tensor
    block_tables: Tensor
    context_lens: Tensor
    keys: list[Tensor]
    values: list[Tensor]

    def query(self, num_tokens: int, num_q_heads: int, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_tokens, num_q_heads, self.kv_layer.shape[-1])
        return torch.randn(shape, generator=generator).to(self.kv_layer)

    def paged(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.kv_layer, self.block_tables, self.context_lens

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same in float32 at least, for a reference whose result is not rounded to 16 bits."""
        return widen(self.kv_layer), self.block_tables, self.context_lens

    def to(self, device: str) -> "Case":
        kv_layer, block_tables, context_lens = (tensor.to(device) for tensor in self.paged())
        return Case(kv_layer, block_tables, context_lens, self.keys, self.values)


def make_case(
    lengths: list[int],
    *,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    spare_blocks: int = 2,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in lengths]
    num_blocks = sum(needed) + spare_blocks
    pool = torch.full((num_blocks, NUM_LAYERS, 2, block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    kv_layer = pool[:, LAYER]
    # Block 0 stays free: it is where a masked table entry points, if what it points to were read after all.
    shuffled = 1 + torch.randperm(num_blocks - 1, generator=generator)
    tables = torch.full((len(lengths), max(needed, default=0) + 1), PADDING, dtype=torch.int32)
    keys, values = [], []
    for seq, (begin, end) in enumerate(pairwise(torch.tensor([0, *needed]).cumsum(0).tolist())):
        blocks = shuffled[begin:end]
        tables[seq, : end - begin] = blocks
        positions = torch.arange(lengths[seq])
        shape = (2, lengths[seq], num_kv_heads, head_dim)
        kv = torch.randn(shape, generator=generator).to(dtype)
        for kind in range(2):
            kv_layer[blocks[positions // block_size], kind, positions % block_size] = kv[kind]
        keys.append(kv[0])
        values.append(kv[1])
    return Case(kv_layer, tables, torch.tensor(lengths, dtype=torch.int32), keys, values)


def features(name: str, num_q_heads: int, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments for an op: a softmax with what FEATURES names."""
    arguments = dict(FEATURES[name])
    if "sinks" in arguments:
        # Around 2, so that a sink weighs as much as several keys.
        sinks = 2 + torch.randn(num_q_heads, generator=torch.Generator().manual_seed(2))
        arguments["sinks"] = sinks.to(device)
    return {"softmax": Softmax(0.3, **arguments)}


def widen(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def tolerance(case: Case) -> float:
    """How far a right kernel may be from the reference in float32 on the same inputs.

    Every result is a weighted mean of values (a sink only shrinks it), so an error of the weights counts
    times the largest value. The output and, before the second dot product, the weights are rounded to the
    pool's dtype: half an eps each. In float32, scores of up to ten sum up to 256 products and lose a few tens
    of eps, which become relative errors of the weights.
    """
    largest = max((float(value.abs().max()) for value in case.values if value.numel()), default=0.0)
    return largest * (torch.finfo(case.kv_layer.dtype).eps + 32 * torch.finfo(torch.float32).eps)
