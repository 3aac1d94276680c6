"""The reference of `gated_activation` in plain PyTorch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "gelu": functional.gelu,
}


def gated_activation_reference(gate_up: Tensor, activation: str) -> Tensor:
    """Arguments as for `kernels.gated_activation.gated_activation`."""
    wide = gate_up if gate_up.dtype == torch.float64 else gate_up.float()
    gate, up = wide.chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate) * up).to(gate_up.dtype)
