"""Matrix products in tiles of fixed heights, so that a row's result does not depend on its neighbours.

A matrix library chooses its kernel, and with it the order in which a product's terms are added, by the number
of rows: a token computed alone differs in its last bits from the same token in a batch. Here every product
has one of a few heights, and one that is left over is padded. The lowest height, the base, is always used;
each higher one only where it was seen to give the base's bits with the very weights it is for.

After He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

BASE_ROWS = 16
"""With fewer, products with the weights to be read for 16 rows take hardly less time."""
TALL_ROWS = (256, 64)


def padded_rows(num_rows: int, multiple: int = BASE_ROWS) -> int:
    return -(-num_rows // multiple) * multiple


def pad_rows(rows: Tensor, num_rows: int) -> Tensor:
    """[n, ...] with zeros appended to `num_rows` rows."""
    missing = num_rows - rows.shape[0]
    return rows if not missing else torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))


class TiledProduct:
    """rows @ weight.T + bias, whatever the number of rows; weight [out, in] in any layout, bias [out]."""

    __slots__ = ("_bias", "_heights", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self._heights: tuple[int, ...] = (BASE_ROWS,)
        self._heights = (*(height for height in TALL_ROWS if self._agrees(height)), BASE_ROWS)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] -> [n, out]"""
        num_rows = rows.shape[0]
        padded = pad_rows(rows, padded_rows(num_rows))
        total = padded.shape[0]
        if total in self._heights:
            return F.linear(padded, self._weight, self._bias)[:num_rows]
        tiles = []
        begin = 0
        for height in self._heights:
            while total - begin >= height:
                tiles.append(F.linear(padded[begin : begin + height], self._weight, self._bias))
                begin += height
        return torch.cat(tiles)[:num_rows]

    def _agrees(self, height: int) -> bool:
        """Whether tiles of this height give the base's bits, wherever in the tile a row is."""
        generator = torch.Generator(device="cpu").manual_seed(height)
        shape = (height, self._weight.shape[1])
        rows = torch.randn(shape, generator=generator, dtype=torch.float64).to(self._weight.dtype)
        tall = F.linear(rows, self._weight, self._bias)
        return torch.equal(tall, self(rows)) and torch.equal(tall, self(rows.roll(1, 0)).roll(-1, 0))


class TiledLinear(nn.Module):
    """Takes a linear layer's place, with its weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self._product = TiledProduct(weight, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._product(flat).view(*hidden.shape[:-1], -1)


class TiledModule(nn.Module):
    """Runs a module that takes rows, such as the one that chooses experts, on one base tile after another."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Rows [n, in] -> the module's outputs, each [n, ...]"""
        rows = hidden.reshape(-1, hidden.shape[-1])
        padded = pad_rows(rows, padded_rows(rows.shape[0]))
        outputs = [self._module(tile) for tile in padded.view(-1, BASE_ROWS, rows.shape[1]).unbind()]
        return tuple(torch.cat(parts)[: rows.shape[0]] for parts in zip(*outputs, strict=True))


@torch.inference_mode()
def tile_rows(model: nn.Module) -> None:
    """Replace every module of `model` that multiplies rows by a matrix of its own, experts apart."""
    for name, module in list(model.named_modules()):
        replaced = _tiled(module)
        if replaced is not None:
            model.set_submodule(name, replaced)


def _tiled(module: nn.Module) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return None
    bias = getattr(module, "bias", None)
    if isinstance(module, nn.Linear):
        return TiledLinear(weight, bias)
    if isinstance(module, Conv1D):
        return TiledLinear(weight.t(), bias)
    return TiledModule(module)
