"""Weights of linear layers in the order in which the native ops read them.

A panel has the weights of PANEL outputs. In float32 panels are [outputs / PANEL, in, PANEL]. In bfloat16 they
are [outputs / PANEL, in / 2, PANEL, 2]: the instructions that multiply it take pairs of inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import loader

PANEL = 16
BF16_GRAIN = 32
"""In bfloat16 the number of inputs has to be a multiple of this."""


def fits(inputs: int, dtype: torch.dtype) -> bool:
    """Return whether this processor's native ops multiply rows of `inputs` numbers, and are fast at it."""
    native = loader.library()
    if native is None:
        return False
    if dtype == torch.bfloat16:
        return native.target.has_bf16 and inputs % BF16_GRAIN == 0
    return dtype == torch.float32


def to_panels(weight: Tensor) -> Tensor:
    """Return a copy of a weight [out, in] in panels; outputs that fill the last panel are 0."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % PANEL))
    if weight.dtype == torch.bfloat16:
        return padded.view(-1, PANEL, inputs // 2, 2).transpose(1, 2).contiguous()
    return padded.view(-1, PANEL, inputs).transpose(1, 2).contiguous()


def rows_of(panels: Tensor, outputs: Tensor) -> Tensor:
    """Return the rows [n, in] of the weight that are given by their numbers [n] int64."""
    panel = torch.div(outputs, PANEL, rounding_mode="floor")
    return panels[panel, :, outputs - panel * PANEL].flatten(1)
