"""Native ops add what LoRA adapters make of a step's rows, as products in float64 do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.native.adapters import AdapterBlocks, AdapterParts, AdapterWeights, add_adapters
from tests.kernels.tensors import randn, same_bits

DTYPES = (torch.bfloat16, torch.float32)
RANKS = [3, 8, 0, 5]
ROWS = [7, 0, 4, 5, 1]
"""Rows of a step of nine in order of their adapters; the others have none."""
BLOCKS = [(0, 0, 2), (0, 2, 3), (1, 3, 4), (2, 4, 4), (3, 4, 5)]
"""Slot, begin and end of each block in these."""

pytestmark = pytest.mark.usefixtures("target")


def weights(inputs: int, first: int, outputs: int, dtype: torch.dtype, seed: int) -> AdapterWeights:
    down = randn(len(RANKS), max(RANKS), inputs, dtype=dtype, seed=seed)
    up = randn(len(RANKS), max(RANKS), outputs, dtype=dtype, seed=seed + 1)
    return AdapterWeights(first, down, up, torch.tensor(RANKS))


def blocks() -> AdapterBlocks:
    return AdapterBlocks(torch.tensor(ROWS), torch.tensor(BLOCKS))


def expected(x: Tensor, out: Tensor, parts: list[AdapterWeights]) -> Tensor:
    want = out.double()
    for slot, begin, end in BLOCKS:
        rank = RANKS[slot]
        for row in ROWS[begin:end]:
            for part in parts:
                down, up = part.down[slot, :rank].double(), part.up[slot, :rank].double()
                want[row, part.first : part.first + up.shape[1]] += x[row].double() @ down.t() @ up
    return want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [1, 16, 37, 300])
@pytest.mark.parametrize("outputs", [1, 64, 77])
def test_each_row_gets_the_products_of_its_adapter(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    parts = [weights(inputs, 2, outputs, dtype, 1), weights(inputs, 2 + outputs, 5, dtype, 3)]
    x, out = randn(9, inputs, dtype=dtype, seed=5), randn(9, outputs + 9, dtype=dtype, seed=6)
    want, before = expected(x, out, parts), out.clone()
    add_adapters(x, out, AdapterParts(parts), blocks())
    tolerance = 4 * torch.finfo(dtype).eps * float(want.abs().max())
    assert float((out.double() - want).abs().max()) <= tolerance
    without = [row for row in range(9) if row not in ROWS]
    assert same_bits(out[without], before[without])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    part = weights(300, 0, 77, dtype, 1)
    x, together = randn(9, 300, dtype=dtype, seed=5), randn(9, 77, dtype=dtype, seed=6)
    alone = together.clone()
    add_adapters(x, together, AdapterParts([part]), blocks())
    for slot, begin, end in BLOCKS:
        for row in ROWS[begin:end]:
            own = AdapterBlocks(torch.tensor([row]), torch.tensor([(slot, 0, 1)]))
            add_adapters(x, alone, AdapterParts([part]), own)
    assert same_bits(together, alone)
