"""Linear layers in bfloat16 on a CPU, with weights in the order in which oneDNN reads them.

torch gives oneDNN a weight as the checkpoint has it, and oneDNN rearranges it in every product. Here that is
done once, at load. The weight is replaced, so no memory is added. In float32 nothing is packed: products of
one row, as a single stream has, would take a seventh longer.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

_ops = torch.ops.mkldnn
"""The ops that code of torch's own compiler calls; torch has no public names for them."""
TYPICAL_ROWS = 32
"""The number of rows for which oneDNN chooses the order; it suits 1 row and 256 as well as their own does."""


class PackedLinear(nn.Module):
    """Replaces a linear layer."""

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
    """Replace the linear layers of a model on a CPU that `packable` names, one after the other."""
    for name in packable(model):
        linear = model.get_submodule(name)
        weight, bias = linear.get_parameter("weight"), getattr(linear, "bias", None)
        model.set_submodule(name, PackedLinear(weight, bias))


def packable(model: nn.Module) -> list[str]:
    """Return the names of the linear layers whose products are faster when packed, on this processor.

    A weight that another module shares, such as a tied embedding, is not packed.
    """
    if not (torch._C._has_mkldnn and _ops._is_mkldnn_bf16_supported()):  # noqa: SLF001
        return []
    owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and module.weight.dtype == torch.bfloat16
        and owners[id(module.weight)] == 1
    ]
