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
from dataclasses import dataclass
from typing import Any

import torch

from kernels.native.loader import processor_features

PRODUCTS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "sve_bf16"})
"""Processor features that multiply bfloat16, by torch's names: of x86, then of ARM."""
_WITHOUT = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
LIMITS = {"ATEN_CPU_CAPABILITY": ("default", "avx2"), "ONEDNN_MAX_CPU_ISA": _WITHOUT}
"""Environment variables of torch's libraries, and values in lower case that keep them from such features."""


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """The type of weights and KV, and in words why it is that one."""

    dtype: torch.dtype
    reason: str

    @property
    def name(self) -> str:
        return name_of(self.dtype)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


def resolve_dtype(asked: torch.dtype | None, device: torch.device, config: Mapping[str, Any]) -> DtypeChoice:
    """Return the dtype that is asked for; if None, the one for a device and a model's config.json."""
    if asked is not None:
        return DtypeChoice(asked, "--dtype asks for it")
    if device.type != "cpu":
        return DtypeChoice(torch.bfloat16, "a GPU multiplies it")
    return choose_for_cpu(checkpoint_dtype(config), processor_features(), os.environ)


def choose_for_cpu(checkpoint: str, features: Collection[str], environment: Mapping[str, str]) -> DtypeChoice:
    """Return the type for a checkpoint's type, a processor's features and the environment's limits."""
    if checkpoint == "float32":
        return DtypeChoice(torch.float32, "the checkpoint's")
    if checkpoint != "bfloat16":
        return DtypeChoice(torch.float32, f"bfloat16 would round the checkpoint, which is in {checkpoint}")
    if PRODUCTS.isdisjoint(features):
        return DtypeChoice(torch.float32, "this processor has no bfloat16 products")
    limit = _limit(environment)
    if limit is not None:
        return DtypeChoice(torch.float32, f"{limit} keeps torch from bfloat16 products")
    return DtypeChoice(torch.bfloat16, "the checkpoint's, and this processor multiplies it")


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """Return the name of the type that weights are stored in; float32 if config.json does not say it."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")


def _limit(environment: Mapping[str, str]) -> str | None:
    """Return the first variable, with its value, that keeps torch's libraries from such products."""
    values = ((name, environment.get(name, "")) for name in LIMITS)
    return next((f"{name}={value}" for name, value in values if value.lower() in LIMITS[name]), None)
