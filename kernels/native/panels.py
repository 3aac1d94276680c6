"""Weights of linear layers in the order in which the native ops read them.

A panel has the weights of PANEL outputs. In float32 panels are [outputs / PANEL, in, PANEL]. In bfloat16 they
are [outputs / PANEL, in / 2, PANEL, 2]: the instructions that multiply it take pairs of inputs.

Whole numbers of 8 bits are int8 [outputs / PANEL, in, PANEL], those of 4 bits uint8
[outputs / PANEL, in / 2, PANEL] with the even input in the lower half. Each stands for what it is above its
zero, times its scale: (q[n, k] - zero[n, k // group]) * scale[n, k // group].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import loader

PANEL = 16
BF16_GRAIN = 32
"""In bfloat16 the number of inputs has to be a multiple of this."""
WHOLE_GRAIN = 2
"""Likewise in whole numbers, which are read in pairs; and groups have to be."""


def fits(inputs: int, dtype: torch.dtype) -> bool:
    """Return whether this processor's native ops multiply rows of `inputs` numbers, and are fast at it."""
    native = loader.library()
    if native is None:
        return False
    if dtype == torch.bfloat16:
        return native.target.has_bf16 and inputs % BF16_GRAIN == 0
    return dtype == torch.float32


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [outputs, inputs]; `numbers` are its panels.

    With `bits`, 8 or 4, they are whole numbers: `scales` and `zeros`, [outputs / PANEL, in / group, PANEL] of
    float32 and int8, are those of `group` inputs. Without `zeros`, zero is 0 in 8 bits and 8 in 4 bits.
    """

    numbers: Tensor
    inputs: int
    outputs: int
    bits: int = 0
    group: int = 0
    scales: Tensor | None = None
    zeros: Tensor | None = None

    @property
    def stored(self) -> int:
        """`Stored` of ops.h."""
        if self.bits != 8:
            return 3 if self.bits else 0
        return 1 if self.group >= self.inputs and self.zeros is None else 2


def to_panels(weight: Tensor) -> Panels:
    """Return a copy of a weight [out, in] in panels; outputs that fill the last panel are 0."""
    outputs, inputs = weight.shape
    pairs = 2 if weight.dtype == torch.bfloat16 else 1
    return Panels(_in_panels(weight, pairs), inputs, outputs)


def whole_to_panels(
    numbers: Tensor, scales: Tensor, zeros: Tensor | None, *, bits: int, inputs: int
) -> Panels:
    """Return a copy of whole numbers in panels.

    numbers  [out, inputs] int8 of 8 bits; [out, inputs / 2] uint8 of 4 bits, the even input in the lower half
    scales   [out, groups]
    zeros    [out, groups] of whole numbers, or None
    """
    groups = scales.shape[1]
    return Panels(
        _in_panels(numbers, 1),
        inputs,
        len(numbers),
        bits,
        -(-inputs // groups),
        _in_panels(scales.float(), 1),
        None if zeros is None else _in_panels(zeros.to(torch.int8), 1),
    )


def _in_panels(rows: Tensor, pairs: int) -> Tensor:
    outputs, inputs = rows.shape
    padded = F.pad(rows, (0, 0, 0, -outputs % PANEL)).view(-1, PANEL, inputs // pairs, pairs)
    panels = padded.transpose(1, 2).contiguous()
    return panels if pairs > 1 else panels.squeeze(3)


def rows_of(panels: Panels, outputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows [n, in] of a weight that are given by their numbers [n] int64.

    The weight is of floats, or of 8 bits with a scale for each output.
    """
    panel = torch.div(outputs, PANEL, rounding_mode="floor")
    rows = panels.numbers[panel, :, outputs - panel * PANEL].flatten(1)
    if panels.scales is None:
        return rows
    return rows.to(dtype) * panels.scales[panel, 0, outputs - panel * PANEL][:, None].to(dtype)
