"""Weights of linear layers in the order in which the native ops read them.

A panel has the weights of PANEL outputs. In float32 panels are [outputs / PANEL, in, PANEL]. In bfloat16 they
are [outputs / PANEL, in / 2, PANEL, 2]: the instructions that multiply it take pairs of inputs.

Whole numbers of 8 bits are int8 [outputs / PANEL, in, PANEL], those of 4 bits uint8
[outputs / PANEL, in / 2, PANEL] with the even input in the lower half. Each stands for what it is above its
zero, times its scale: (q[n, k] - zero[n, k // group]) * scale[n, k // group]; or, where a group has an offset
instead of a zero, for q[n, k] * scale[n, k // group] + offset[n, k // group].
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
MIDDLE = 8
"""The zero of 4 bits where none is stored."""
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

    With `bits`, 8 or 4, they are whole numbers: `scales` and either `zeros` or `offsets`, [outputs / PANEL,
    in / group, PANEL] of float32, int8 and float32, are those of `group` inputs. Without both, zero is 0 in 8
    bits and 8 in 4 bits.
    """

    numbers: Tensor
    inputs: int
    outputs: int
    bits: int = 0
    group: int = 0
    scales: Tensor | None = None
    zeros: Tensor | None = None
    offsets: Tensor | None = None

    @property
    def stored(self) -> int:
        """`Stored` of ops.h."""
        if self.bits != 8:
            return 3 if self.bits else 0
        is_scaled = self.zeros is None and self.offsets is None
        return 1 if self.group >= self.inputs and is_scaled else 2


def to_panels(weight: Tensor) -> Panels:
    """Return a copy of a weight [out, in] in panels; outputs that fill the last panel are 0."""
    outputs, inputs = weight.shape
    pairs = 2 if weight.dtype == torch.bfloat16 else 1
    return Panels(_in_panels(weight, pairs), inputs, outputs)


def whole_to_panels(
    numbers: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    offsets: Tensor | None = None,
    *,
    bits: int,
    inputs: int,
) -> Panels:
    """Return a copy of whole numbers in panels.

    numbers  [out, inputs] int8 of 8 bits; [out, inputs / 2] uint8 of 4 bits, the even input in the lower half
    scales   [out, groups]
    zeros    [out, groups] of whole numbers, or None
    offsets  [out, groups] in their place, or None
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
        None if offsets is None else _in_panels(offsets.float(), 1),
    )


def _in_panels(rows: Tensor, pairs: int) -> Tensor:
    outputs, inputs = rows.shape
    padded = F.pad(rows, (0, 0, 0, -outputs % PANEL)).view(-1, PANEL, inputs // pairs, pairs)
    panels = padded.transpose(1, 2).contiguous()
    return panels if pairs > 1 else panels.squeeze(3)


def rows_of(panels: Panels, outputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows [n, in] of a weight that are given by their numbers [n] int64.

    Of weights with a scale for each output, the product is rounded to the dtype, otherwise the weight.
    """
    panel = torch.div(outputs, PANEL, rounding_mode="floor")

    def of(tensor: Tensor) -> Tensor:
        return tensor[panel, :, outputs - panel * PANEL]

    rows = of(panels.numbers).flatten(1)
    if panels.scales is None:
        return rows
    if panels.stored == 1:
        return rows.to(dtype) * of(panels.scales).to(dtype)
    numbers = unpacked(rows) if panels.bits == 4 else rows
    zeros, offsets = (None if each is None else of(each) for each in (panels.zeros, panels.offsets))
    return expanded(numbers, of(panels.scales), zeros, offsets, panels.bits).to(dtype)


def expanded(
    numbers: Tensor, scales: Tensor, zeros: Tensor | None, offsets: Tensor | None, bits: int
) -> Tensor:
    """Return the weights [out, in] float32 of as many whole numbers; the rest is [out, groups]."""
    groups = numbers.float().view(len(numbers), scales.shape[1], -1)
    if offsets is not None:
        return (groups * scales[..., None] + offsets[..., None]).flatten(1)
    zero = (0 if bits == 8 else MIDDLE) if zeros is None else zeros[..., None].float()
    return ((groups - zero) * scales[..., None]).flatten(1)


def packed(numbers: Tensor) -> Tensor:
    """Pack numbers [..., K] of 4 bits, in uint8, to [..., K / 2], the even one in the lower half."""
    return numbers[..., 0::2] | (numbers[..., 1::2] << 4)


def unpacked(packed_numbers: Tensor) -> Tensor:
    """Return what `packed` took."""
    return torch.stack((packed_numbers & 15, packed_numbers >> 4), dim=-1).flatten(-2)
