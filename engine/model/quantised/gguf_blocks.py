"""Reads rows of GGUF's blocks as whole numbers with scales, exactly (ggml's ggml-common.h has the layouts).

A block has numbers of 4 to 8 bits, in groups that share a scale `s` and perhaps an offset `m`; each number q
stands for q * s + m. Its bytes, in order:

    Q4_0  32 numbers   d float16, 16 bytes of two numbers: the lower halves are 0 to 15, the upper 16 to 31.
                       s = d, and 8 is zero
    Q4_1  32           d, m float16, and the numbers likewise. s = d
    Q5_0  32           d, 32 fifth bits, 16 bytes as Q4_0. s = d, and 16 is zero
    Q5_1  32           d, m, 32 fifth bits, 16 bytes. s = d
    Q8_0  32           d, 32 int8. s = d
    Q4_K  256          d, e float16, 12 bytes of 8 pairs a, b of 6 bits, 128 bytes: each 32 have one group in
                       the lower halves and the next in the upper. s = d * a and m = -e * b for 32 numbers
    Q5_K  256          d, e, 12 bytes likewise, 32 bytes of fifth bits (bit g is of group g), 128 bytes
    Q6_K  256          128 bytes of lower halves, 64 of upper bits, 16 int8 a, d. s = d * a for 16
                       numbers, and 32 is zero

Products of a float16 and 8 bits, which `s` and `m` are, are exact in float32. So `q * s + m` is rounded once,
as where these numbers become floats first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gguf_model.tensor_types import TensorType
from kernels.native.panels import packed


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [N, K] of whole numbers, as GroupedLinear takes it.

    numbers  of 4 bits uint8 [N, K / 2], else int8 [N, K]
    scale    float32 [N, groups]
    offset   float32 [N, groups], or None: 0 is zero in 8 bits, and 8 in 4 bits
    """

    numbers: Tensor
    scale: Tensor
    offset: Tensor | None
    bits: int


def groups_of(rows: Tensor, kind: TensorType) -> Groups:
    """Read rows uint8 [N, bytes] of blocks of a type that is not a float."""
    return _READERS[kind.name](rows.view(len(rows), -1, kind.block_bytes))


def _q8_0(blocks: Tensor) -> Groups:
    return _of_8(blocks[..., 2:].contiguous().view(torch.int8), _floats(blocks[..., :2]))


def _q4_0(blocks: Tensor) -> Groups:
    return _of_4(_halves(blocks[..., 2:]), _floats(blocks[..., :2]))


def _q4_1(blocks: Tensor) -> Groups:
    return _of_4(_halves(blocks[..., 4:]), _floats(blocks[..., :2]), _floats(blocks[..., 2:4]))


def _q5_0(blocks: Tensor) -> Groups:
    numbers = _halves(blocks[..., 6:]) | (_bits(blocks[..., 2:6]) << 4)
    return _of_8(numbers.to(torch.int8) - 16, _floats(blocks[..., :2]))


def _q5_1(blocks: Tensor) -> Groups:
    numbers = _halves(blocks[..., 8:]) | (_bits(blocks[..., 4:8]) << 4)
    return _of_8(numbers.to(torch.int8), _floats(blocks[..., :2]), _floats(blocks[..., 2:4]))


def _q4_k(blocks: Tensor) -> Groups:
    return _of_4(_halves(torch.unflatten(blocks[..., 16:], 2, (4, 32))), *_scales_of_k(blocks))


def _q5_k(blocks: Tensor) -> Groups:
    lower = torch.unflatten(_halves(torch.unflatten(blocks[..., 48:], 2, (4, 32))), 3, (2, 32)).flatten(2, 3)
    places = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    fifth = (blocks[..., None, 16:48] >> places[:, None]) & 1
    return _of_8((lower | (fifth << 4)).to(torch.int8), *_scales_of_k(blocks))


def _q6_k(blocks: Tensor) -> Groups:
    lower = torch.unflatten(_halves(torch.unflatten(blocks[..., :128], 2, (2, 64))), 3, (4, 32))
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    upper = (torch.unflatten(blocks[..., 128:192], 2, (2, 1, 32)) >> places[:, None]) & 3
    numbers = (lower | (upper << 4)).to(torch.int8) - 32
    factors = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return _of_8(numbers, factors * _floats(blocks[..., 208:]))


def _of_4(numbers: Tensor, scale: Tensor, offset: Tensor | None = None) -> Groups:
    flat = None if offset is None else offset.flatten(1)
    return Groups(packed(numbers.flatten(1)), scale.flatten(1), flat, 4)


def _of_8(numbers: Tensor, scale: Tensor, offset: Tensor | None = None) -> Groups:
    flat = None if offset is None else offset.flatten(1)
    return Groups(numbers.flatten(1), scale.flatten(1), flat, 8)


def _floats(pairs: Tensor) -> Tensor:
    """Read float16 in bytes [..., 2] as float32 [..., 1]."""
    return pairs.contiguous().view(torch.float16).float()


def _halves(pairs: Tensor) -> Tensor:
    """Return the lower halves of bytes [..., n], and then the upper ones, as [..., 2n]."""
    return torch.cat((pairs & 15, pairs >> 4), dim=-1)


def _bits(words: Tensor) -> Tensor:
    """Return the bits of bytes [..., n], the lowest first, as [..., 8n]."""
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    return ((words[..., None] >> places) & 1).flatten(-2)


def _scales_of_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and offsets [N, blocks, 8] of the 12 bytes after two float16."""
    first, second, third = torch.unflatten(blocks[..., 4:16], 2, (3, 4)).unbind(2)
    scale = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=-1)
    least = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=-1)
    return scale.float() * _floats(blocks[..., :2]), least.float() * -_floats(blocks[..., 2:4])


_READERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
