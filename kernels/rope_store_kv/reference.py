"""The reference of `rope_store_kv` in plain PyTorch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.add_rms_norm.reference import add_rms_norm_reference
from kernels.store_kv.reference import store_kv_reference


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """How heads are normalised before they are rotated; weights [head_dim], None if they are not.

    `eps` and `unit_offset` as in `add_rms_norm`.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    eps: float = 1e-6
    unit_offset: bool = False


NO_NORMS = HeadNorms()


def rope_store_kv_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    kv_scales: Tensor | None = None,
    *,
    norms: HeadNorms = NO_NORMS,
) -> Tensor:
    """Arguments as for `kernels.rope_store_kv.rope_store_kv`; the pool is written in place."""
    if norms.query is not None:
        query = add_rms_norm_reference(query, None, norms.query, norms.eps, unit_offset=norms.unit_offset)
    if norms.key is not None:
        key = add_rms_norm_reference(key, None, norms.key, norms.eps, unit_offset=norms.unit_offset)
    store_kv_reference(_rotate(key, cos, sin), value, kv_layer, slot_mapping, kv_scales)
    return _rotate(query, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """X [num_tokens, num_heads, head_dim] turned in float32 at least, rounded once."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rotary_dim = cos.shape[1]
    half = rotary_dim // 2
    cos, sin = cos[:, None, :half].to(wide), sin[:, None, :half].to(wide)
    first, second, rest = torch.split(x.to(wide), [half, half, x.shape[2] - rotary_dim], dim=2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=2).to(x.dtype)
