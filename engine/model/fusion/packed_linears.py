"""Linear layers on a CPU, with weights in the order in which products read them.

Weights are rearranged once, at load. They are replaced, so no memory is added. `kernels.native` multiplies
panels, in float32, and in bfloat16 where the processor does. Elsewhere oneDNN multiplies bfloat16: it gets
weights in its own order, which it would otherwise make in every product. In float32 a product of one row by
oneDNN's order takes a seventh longer than as torch has it, so without native ops nothing is packed.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from kernels.native import ops
from kernels.native.ops import fits, rows_of, to_panels

_ops = torch.ops.mkldnn
"""The ops that code of torch's own compiler calls; torch has no public names for them."""
TYPICAL_ROWS = 32
"""The number of rows for which oneDNN chooses the order; it suits 1 row and 256 as well as their own does."""


class PanelLinear(nn.Module):
    """A linear layer that native ops compute. A row's bits depend on that row alone."""

    panels: Tensor
    bias: Tensor | None

    def __init__(self, panels: Tensor, bias: Tensor | None, inputs: int, outputs: int) -> None:
        """Panels of a weight [outputs, inputs], bias [outputs] or None."""
        super().__init__()
        self.register_buffer("panels", panels)
        self.register_buffer("bias", bias)
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., inputs] to [..., outputs]."""
        rows = hidden.reshape(-1, self.inputs)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        product = ops.linear(rows, self.panels, self.bias, self.outputs)
        return product.view(*hidden.shape[:-1], self.outputs)


class PanelEmbedding(nn.Module):
    """An embedding that shares the panels of a linear layer."""

    panels: Tensor

    def __init__(self, panels: Tensor, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("panels", panels)
        self.embedding_dim = embedding_dim

    def forward(self, token_ids: Tensor) -> Tensor:
        """Embed [...] to [..., embedding_dim]."""
        rows = rows_of(self.panels, token_ids.reshape(-1))
        return rows.view(*token_ids.shape, self.embedding_dim)


class PackedLinear(nn.Module):
    """A linear layer in bfloat16 that oneDNN computes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Weight [out, in], bias [out] or None."""
        super().__init__()
        self._packed = _ops._reorder_linear_weight(weight, TYPICAL_ROWS)  # noqa: SLF001
        self.register_buffer("bias", bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        product: Tensor = _ops._linear_pointwise(hidden, self._packed, self.bias, "none", [], "")  # noqa: SLF001
        return product


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replace the linear layers of a model on a CPU for which there is a faster order, one after the other.

    An embedding that shares a weight is replaced too. A weight that anything else shares is left as it is.
    """
    for names in modules_by_weight(model):
        modules = [model.get_submodule(name) for name in names]
        linears = [module for module in modules if type(module) is nn.Linear]
        others = [module for module in modules if type(module) is not nn.Linear]
        if len(linears) != 1:
            continue
        weight, bias = linears[0].weight, linears[0].bias
        outputs, inputs = weight.shape
        if fits(inputs, weight.dtype) and all(type(module) is nn.Embedding for module in others):
            panels = to_panels(weight)
            for name, module in zip(names, modules, strict=True):
                is_linear = module is linears[0]
                linear = PanelLinear(panels, bias, inputs, outputs)
                model.set_submodule(name, linear if is_linear else PanelEmbedding(panels, inputs))
        elif not others and packs(weight):
            model.set_submodule(names[0], PackedLinear(weight, bias))


def packs(weight: Tensor) -> bool:
    """Return whether oneDNN multiplies a weight faster in its own order, on this processor."""
    if not (torch._C._has_mkldnn and _ops._is_mkldnn_bf16_supported()):  # noqa: SLF001
        return False
    return weight.dtype == torch.bfloat16


def modules_by_weight(model: nn.Module) -> list[list[str]]:
    """Return the names of the modules that have each weight of two dimensions."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        for weight in module.parameters(recurse=False):
            if weight.ndim == 2:
                names[id(weight)].append(name)
    return list(names.values())
