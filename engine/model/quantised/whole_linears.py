"""Linear layers whose weights are whole numbers of 8 or 4 bits, and the scales that these share.

Only weights are quantised; activations and sums keep the model's dtype or a wider one (W8A16, W4A16).
`kernels.native` computes these layers where it was built for the processor, from panels of the same numbers,
and `kernels.int8_linear` those with a scale for each output on a GPU. What is here multiplies elsewhere, by
expanding some outputs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from kernels.int8_linear import int8_linear, make_counters
from kernels.native.panels import MIDDLE, Panels, expanded, unpacked, whole_to_panels

PACKED_MAX_ROWS = 8
"""On a CPU torch's int8 product computes row by row: in bfloat16 faster up to this many rows, slower for
16."""
PACKED_INPUTS = 32
"""torch's product reads past the end of rows that are not a multiple of this long."""
CHUNK_ELEMENTS = 1 << 18
"""Weights are expanded this many at a time: 1 MiB in float32, which stays in a core's second-level cache."""
SHARED = ("weight", "scale", "zero", "offset")
"""The tensors of a layer whose first dimension is the outputs, besides its bias; some may be None."""


class WholeLinear(nn.Module):
    """Replaces a linear layer. Outputs are the first dimension of all its tensors."""

    weight: Tensor
    scale: Tensor
    zero: Tensor | None
    offset: Tensor | None
    bias: Tensor | None
    bits: int
    dtype: torch.dtype
    """The dtype of the model."""
    order: Tensor | None = None
    """The input that each of the weights' belongs to, [in], if they are in another order."""
    by_input: ClassVar[tuple[str, ...]]
    """The tensors whose second dimension is the inputs, or groups of them."""

    @property
    def outputs(self) -> int:
        return len(self.weight)

    @property
    def inputs(self) -> int:
        return self.weight.shape[1] * 8 // self.bits

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights, with what they share."""
        return sum(tensor.nbytes for name in SHARED if (tensor := getattr(self, name)) is not None)

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self.multiply(rows).view(*hidden.shape[:-1], self.outputs)

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply [n, in] to [n, out]."""
        return self._multiply(rows if self.order is None else rows.index_select(1, self.order))

    def _multiply(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def panels(self) -> Panels:
        """Return a copy of the weights in the order in which native ops read them."""
        raise NotImplementedError

    def is_like(self, other: WholeLinear) -> bool:
        """Return whether outputs of both can be those of one layer."""
        mine, others = (
            (
                (type(each), each.bits, each.inputs, each.scale.shape[1:], each.zero is None),
                (each.offset is None, each.order is None),
            )
            for each in (self, other)
        )
        if mine != others:
            return False
        return self.order is None or other.order is None or torch.equal(self.order, other.order)

    def with_outputs_of(self, others: Sequence[Self], bias: Tensor | None) -> Self:
        """Return a layer that gives the outputs of this one and of others like it, side by side."""
        raise NotImplementedError

    def _joined(self, others: Sequence[WholeLinear], name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in (self, *others)])

    def _product(self, rows: Tensor, expanded: Callable[[slice], Tensor]) -> Tensor:
        """Return rows [n, in] @ weight.T, of which some outputs are expanded at a time."""
        step = max(1, CHUNK_ELEMENTS // self.inputs)
        product = rows.new_empty(rows.shape[0], self.outputs)
        for begin in range(0, self.outputs, step):
            part = slice(begin, begin + step)
            torch.mm(rows, expanded(part).t(), out=product[:, part])
        return product


class Int8Linear(WholeLinear):
    """int8 weight [out, in], with one scale for each output: weight[n, k] = q[n, k] * scale[n].

    Scale and bias [out] are in the model's dtype.
    """

    bits = 8
    by_input = ("weight",)

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", None)
        self.register_buffer("offset", None)
        self.register_buffer("bias", bias)
        self.dtype = scale.dtype
        # Not shared, since layers may run side by side.
        self._counters = make_counters(weight.device) if weight.is_cuda else None

    def _multiply(self, rows: Tensor) -> Tensor:
        if rows.is_cuda:
            return int8_linear(rows, self.weight, self.scale, self.bias, self._counters)
        packed = rows.dtype == torch.bfloat16 and rows.shape[0] <= PACKED_MAX_ROWS
        if packed and rows.shape[1] % PACKED_INPUTS == 0:
            product = torch._weight_int8pack_mm(rows, self.weight, self.scale)  # noqa: SLF001 - torch has no public name for it
        else:
            product = self._product(rows, lambda part: self.weight[part].to(rows.dtype)).mul_(self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def panels(self) -> Panels:
        return whole_to_panels(self.weight, self.scale[:, None], None, bits=8, inputs=self.inputs)

    def with_outputs_of(self, others: Sequence[Self], bias: Tensor | None) -> Self:
        return type(self)(self._joined(others, "weight"), self._joined(others, "scale"), bias)


class WholeEmbedding(nn.Module):
    """Replaces an embedding: looks up the rows of a WholeLinear's weight, whose tensors they may share."""

    weight: Tensor
    scale: Tensor
    bits: int
    factor: float = 1.0
    """The number that rows are multiplied by, of the model's dtype."""

    @property
    def embedding_dim(self) -> int:
        return self.weight.shape[1] * 8 // self.bits

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model."""
        raise NotImplementedError

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name; their first dimension is the rows."""
        return {name: tensor for name in SHARED if (tensor := getattr(self, name, None)) is not None}


class Int8Embedding(WholeEmbedding):
    """The rows of an Int8Linear's weight."""

    bits = 8

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        """Take weight int8 [rows, width], and scale [rows] in the model's dtype."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    @property
    def dtype(self) -> torch.dtype:
        return self.scale.dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        """Embed [...] to [..., width]."""
        return self.weight[token_ids].to(self.dtype) * self.scale[token_ids][..., None]


class GroupedLinear(WholeLinear):
    """Weights of 8 or 4 bits; G inputs of an output share a scale, and a zero or an offset.

    weight[n, k] = (q[n, k] - zero[n, k // G]) * scale[n, k // G] or
    weight[n, k] = q[n, k] * scale[n, k // G] + offset[n, k // G], rounded to the model's dtype.
    """

    by_input = SHARED

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        *,
        offset: Tensor | None = None,
        bits: int,
        dtype: torch.dtype,
    ) -> None:
        """Take the numbers of a weight [out, in].

        weight  of 8 bits int8 [out, in]; of 4 bits uint8 [out, in / 2], the even input in the lower half
        scale   float32 [out, in / G]
        zero    int8 [out, in / G]; None: 0 in 8 bits, 8 in 4 bits, or there is an offset
        offset  float32 [out, in / G] or None
        """
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("offset", offset)
        self.register_buffer("bias", bias)
        self.bits = bits
        self.dtype = dtype

    def _multiply(self, rows: Tensor) -> Tensor:
        product = self._product(rows, lambda part: self.expanded(part).to(rows.dtype))
        return product if self.bias is None else product.add_(self.bias)

    def expanded(self, part: slice) -> Tensor:
        """Return the weights of some outputs, in the model's dtype."""
        own = (getattr(self, name) for name in SHARED)
        return _expanded(*own, bits=self.bits, part=part).to(self.dtype)

    def panels(self) -> Panels:
        own = self.weight, self.scale, self.zero, self.offset
        return whole_to_panels(*own, bits=self.bits, inputs=self.inputs)

    def with_outputs_of(self, others: Sequence[Self], bias: Tensor | None) -> Self:
        if not all(super(GroupedLinear, self).is_like(other) for other in others):
            group = min(each.inputs // each.scale.shape[1] for each in (self, *others))
            first, *rest = (each.widened(group) for each in (self, *others))
            return first.with_outputs_of(rest, bias)
        zero, offset = (
            None if getattr(self, name) is None else self._joined(others, name) for name in ("zero", "offset")
        )
        weight, scale = self._joined(others, "weight"), self._joined(others, "scale")
        whole = type(self)(weight, scale, zero, bias, offset=offset, bits=self.bits, dtype=self.dtype)
        whole.order = self.order
        return whole

    def is_like(self, other: WholeLinear) -> bool:
        """Return whether outputs of both can be those of one layer: also after `widened`."""
        if super().is_like(other):
            return True
        mine, others = (each.inputs // each.scale.shape[1] for each in (self, other))
        both = (self, other)
        are_plain = all(isinstance(each, GroupedLinear) and each.zero is None for each in both)
        is_ordered = all(each.order is None for each in both)
        return (
            are_plain
            and is_ordered
            and self.inputs == other.inputs
            and max(mine, others) % min(mine, others) == 0
        )

    def widened(self, group: int) -> Self:
        """Return the same weights in 8 bits, with smaller groups of inputs, each of which has an offset."""
        times = self.inputs // self.scale.shape[1] // group
        numbers = self.weight if self.bits == 8 else unpacked(self.weight).to(torch.int8)
        # Eight times a float is exact.
        offset = self.scale * (0 if self.bits == 8 else -MIDDLE) if self.offset is None else self.offset
        scale, offset = (each.repeat_interleave(times, dim=1) for each in (self.scale, offset))
        return type(self)(numbers, scale, None, None, offset=offset, bits=8, dtype=self.dtype)


class GroupedEmbedding(WholeEmbedding):
    """The rows of a GroupedLinear's weight, perhaps times a factor."""

    def __init__(self, linear: GroupedLinear, factor: float = 1.0) -> None:
        super().__init__()
        for name in SHARED:
            self.register_buffer(name, getattr(linear, name))
        self.bits = linear.bits
        self.factor = float(torch.tensor(factor).to(linear.dtype))
        self._dtype = linear.dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        """Embed [...] to [..., width]."""
        own = (getattr(self, name) for name in SHARED)
        rows = _expanded(*own, bits=self.bits, part=token_ids.reshape(-1)).to(self.dtype)
        if self.factor != 1.0:
            rows *= self.factor
        return rows.view(*token_ids.shape, self.embedding_dim)


def _expanded(
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    offset: Tensor | None,
    *,
    bits: int,
    part: slice | Tensor,
) -> Tensor:
    """Return the weights of some outputs, in float32."""
    numbers = weight[part] if bits == 8 else unpacked(weight[part])
    zero, offset = (None if each is None else each[part] for each in (zero, offset))
    return expanded(numbers, scale[part], zero, offset, bits)
