"""The type of weights and KV that `auto` stands for: the fastest that loses nothing the checkpoint has.

A GPU computes in bfloat16. A processor does too if the checkpoint is in bfloat16 and the processor
multiplies bfloat16 itself: products then take a quarter to two thirds of the time, and weights half of the
memory. Otherwise it is float32: bfloat16 would round a float16 or float32 checkpoint, and is emulated where
there is no instruction for it.

The choice depends on names of features and not on a measurement, because workers of one fleet have to choose
alike, however busy their machines are at that moment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import torch

PRODUCTS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "sve_bf16"})
"""Processor features that multiply bfloat16, by torch's names: of x86, then of ARM."""
_WITHOUT = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
LIMITS = {"ATEN_CPU_CAPABILITY": ("default", "avx2"), "ONEDNN_MAX_CPU_ISA": _WITHOUT}
"""Environment variables of torch's libraries, and values in lower case that keep them from such features."""


def resolve_dtype(asked: torch.dtype | None, device: torch.device, config: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype that is asked for; if None, the one for a device and a model's config.json."""
    if asked is not None:
        return asked
    if device.type != "cpu":
        return torch.bfloat16
    has_products = multiplies_bfloat16(processor_features(), os.environ)
    return torch.bfloat16 if has_products and checkpoint_dtype(config) == "bfloat16" else torch.float32


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """Return the name of the type that weights are stored in; float32 if config.json does not say it."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")


def multiplies_bfloat16(features: Collection[str], environment: Mapping[str, str]) -> bool:
    """Return True if products of bfloat16 have an instruction that torch's libraries may use."""
    is_limited = any(environment.get(name, "").lower() in values for name, values in LIMITS.items())
    return not is_limited and not PRODUCTS.isdisjoint(features)


def processor_features() -> frozenset[str]:
    """Return the names of this processor's features; none if this torch cannot tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return frozenset(name for name, has in capabilities.items() if has is True)
