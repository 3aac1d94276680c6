"""Matrix products in tiles of fixed heights, so that a row's result does not depend on its neighbours.

A matrix library chooses its kernel, and so the order in which a product's terms are added, by the number of
rows. A token computed alone therefore differs in its last bits from the same token in a batch. Here every
product has one of a few heights, and the rest is padded. The lowest height, the base, is always used; a
higher one only if it was found to give the base's bits with the same weights.

After He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from engine.model.fusion.cpu_layers import PackedLinear, modules_by_weight, packs
from engine.model.quantised.whole_linears import WholeLinear
from engine.starting import OnProgress, Phase, ignore_progress

BASE_ROWS = 16
"""With fewer rows, a product takes hardly less time, since it reads the same weights."""
TALL_ROWS = (256, 64)
INPUT_GRAIN = 16
"""A row of inputs is padded to a multiple of this: 64 bytes of float32. With other widths rows begin at
unlike alignments, and the library's bits depend on a row's place in the tile."""


def padded_rows(num_rows: int, multiple: int = BASE_ROWS) -> int:
    return -(-num_rows // multiple) * multiple


def pad_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Return [n, ...] with zeros appended, up to `num_rows` rows."""
    missing = num_rows - rows.shape[0]
    return rows if not missing else torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))


class TiledProduct:
    """A product of any number of rows [n, in] and a matrix; `multiply` computes it for one tile."""

    __slots__ = ("_heights", "_multiply")

    def __init__(self, multiply: Callable[[Tensor], Tensor], num_inputs: int, dtype: torch.dtype) -> None:
        self._multiply = multiply
        self._heights: tuple[int, ...] = (BASE_ROWS,)
        tall = (height for height in TALL_ROWS if self._agrees(height, num_inputs, dtype))
        self._heights = (*tall, BASE_ROWS)

    @classmethod
    def of_weight(cls, weight: Tensor, bias: Tensor | None, *, packs: bool = False) -> TiledProduct:
        """Return the product with weight.T [in, out], plus bias [out].

        Weight [out, in] may have any layout. It is copied only if its inputs have to be padded, or if it is
        packed (`engine.model.fusion.cpu_layers`).
        """
        num_inputs = weight.shape[1]
        missing = -num_inputs % INPUT_GRAIN
        wide = F.pad(weight, (0, missing)) if missing else weight
        multiply = PackedLinear(wide, bias) if packs else partial(F.linear, weight=wide, bias=bias)
        if not missing:
            return cls(multiply, num_inputs, weight.dtype)
        return cls(lambda rows: multiply(F.pad(rows, (0, missing))), num_inputs, weight.dtype)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply [n, in] to [n, out]."""
        num_rows = rows.shape[0]
        padded = pad_rows(rows, padded_rows(num_rows))
        total = padded.shape[0]
        if total in self._heights:
            return self._multiply(padded)[:num_rows]
        tiles = []
        begin = 0
        for height in self._heights:
            while total - begin >= height:
                tiles.append(self._multiply(padded[begin : begin + height]))
                begin += height
        return torch.cat(tiles)[:num_rows]

    def _agrees(self, height: int, num_inputs: int, dtype: torch.dtype) -> bool:
        """Return whether tiles of this height give the base's bits, wherever in the tile a row is."""
        generator = torch.Generator(device="cpu").manual_seed(height)
        rows = torch.randn((height, num_inputs), generator=generator, dtype=torch.float64).to(dtype)
        tall = self._multiply(rows)
        return torch.equal(tall, self(rows)) and torch.equal(tall, self(rows.roll(1, 0)).roll(-1, 0))


class TiledLinear(nn.Module):
    """Replaces a linear layer; `weight` is what it shares with another module, if it does."""

    def __init__(self, weight: Tensor | None, product: TiledProduct) -> None:
        super().__init__()
        self.weight = weight
        self._product = product

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        return self._product(flat).view(*hidden.shape[:-1], -1)


class TiledModule(nn.Module):
    """Runs a module that takes rows, such as the one that chooses experts, on one base tile after another."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return the module's outputs, each [n, ...], for rows [n, in]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        padded = pad_rows(rows, padded_rows(rows.shape[0]))
        outputs = [self._module(tile) for tile in padded.view(-1, BASE_ROWS, rows.shape[1]).unbind()]
        return tuple(torch.cat(parts)[: rows.shape[0]] for parts in zip(*outputs, strict=True))


@torch.inference_mode()
def tile_rows(model: nn.Module, on_progress: OnProgress = ignore_progress) -> None:
    """Replace every module of `model` that multiplies rows by its own matrix, except experts."""
    modules = list(model.named_modules())
    owners = {name for names in modules_by_weight(model) if len(names) == 1 for name in names}
    for number, (name, module) in enumerate(modules):
        on_progress(Phase.PREPARING, number, len(modules))
        weight = getattr(module, "weight", None)
        replaced = _tiled(module, packs=name in owners and isinstance(weight, Tensor) and packs(weight))
        if replaced is not None:
            model.set_submodule(name, replaced)


def _tiled(module: nn.Module, *, packs: bool) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return None
    bias = getattr(module, "bias", None)
    if isinstance(module, WholeLinear):
        return TiledLinear(weight, TiledProduct(module.multiply, module.inputs, module.dtype))
    if isinstance(module, nn.Linear):
        product = TiledProduct.of_weight(weight, bias, packs=packs)
        return TiledLinear(None if packs else weight, product)
    if isinstance(module, Conv1D):
        return TiledLinear(weight.t(), TiledProduct.of_weight(weight.t(), bias))
    return TiledModule(module)
