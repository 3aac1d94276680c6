"""Loads the library that was built for this processor."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.native.build import TARGETS, library_path

DTYPES = (torch.float32, torch.bfloat16)
LEAST_WORK = 16384
"""Numbers below which to wake other threads costs more than they save."""
_RUNTIME = "GOMP_parallel"


@cache
def library() -> ctypes.CDLL | None:
    """Return the library for the instructions that torch uses here; None if none was built."""
    capability = torch.backends.cpu.get_cpu_capability()
    known = {name for targets in TARGETS.values() for name in targets}
    path = library_path(capability if capability in known else "DEFAULT")
    return ctypes.CDLL(str(path)) if path.exists() else None


@cache
def _parallel() -> Any:
    """Return the entry point of torch's OpenMP runtime; None, for one thread, if there is no such runtime."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), _RUNTIME), ctypes.c_void_p)
    except AttributeError:
        return None


def computes(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the native ops compute on a device in a dtype."""
    return device.type == "cpu" and dtype in DTYPES and library() is not None


def supports(tensor: Tensor) -> bool:
    """Return whether the native ops compute on a tensor."""
    return computes(tensor.device, tensor.dtype)


def call(name: str, tensor: Tensor, count: int, arguments: ctypes.Structure, *, work: int) -> None:
    """Run an op over `count` rows, on as many threads as torch has if it touches enough numbers, `work`."""
    native = library()
    assert native is not None
    threads = torch.get_num_threads() if work >= LEAST_WORK else 1
    is_bf16 = tensor.dtype == torch.bfloat16
    getattr(native, name)(_parallel(), threads, int(is_bf16), ctypes.c_int64(count), ctypes.byref(arguments))
