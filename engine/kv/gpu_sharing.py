"""A GPU's memory shared between processes of one host, by CUDA IPC.

It uses NVIDIA's own bindings, which torch for CUDA installs: torch's way of sharing tensors counts references
in files that a killed process leaves behind. An allocation may be larger than the pool, so a handle includes
the offset of the pool.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.device import CopyStream

_HANDLE = struct.Struct("<64sQ")
"""CUDA's handle of the allocation, and the pool's first byte in it."""


def gpu_uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def gpus_in_reach(device: torch.device) -> tuple[str, ...]:
    """Return the UUIDs of `device` itself and of the visible GPUs that it can read from."""
    own = torch.empty(0, device=device).device  # with its index
    visible = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return tuple(
        gpu_uuid(other) for other in visible if other == own or torch.cuda.can_device_access_peer(own, other)
    )


def share(pool: Tensor) -> bytes:
    """Return a handle of `pool`'s memory for other processes, which must close it before it is freed.

    Raises RuntimeError if CUDA refuses, and ImportError if its bindings are missing.
    """
    runtime, driver = _bindings(pool.device)
    base, _ = _checked(driver.cuMemGetAddressRange(pool.data_ptr()))
    (handle,) = _checked(runtime.cudaIpcGetMemHandle(int(base)))
    return _HANDLE.pack(ctypes.string_at(handle.getPtr(), 64), pool.data_ptr() - int(base))


class PeerBlocks:
    """The blocks of another process, mapped, to be copied to `blocks` [n, ...] on a GPU here.

    Each stretch of blocks is one copy. The two megabytes of a block of an 8B model take about as long as a
    launch within one GPU, and longer between two.
    """

    def __init__(self, handle: bytes, num_blocks: int, blocks: Tensor) -> None:
        """Raise ValueError if `handle` is not valid, or its pool is smaller; else the errors of `share`."""
        if len(handle) != _HANDLE.size:
            raise ValueError(f"the handle has {len(handle)} bytes; accepted: {_HANDLE.size}")
        memory, offset = _HANDLE.unpack(handle)
        self._blocks = blocks
        self._block_bytes = blocks[0].nbytes
        self._stream = CopyStream(blocks.device)
        self._runtime, driver = _bindings(blocks.device)
        self._base = self._open(memory)
        _, size = _checked(driver.cuMemGetAddressRange(self._base))
        if offset + num_blocks * self._block_bytes > size:
            self.close()
            raise ValueError(f"{num_blocks} blocks from {offset} on were announced; there are {size} bytes")
        self._first = self._base + offset

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copy stretches of (place in `blocks`, their block, number of blocks), from any thread.

        Nothing is copied any more once this ends. Raises RuntimeError if CUDA fails.
        """
        runtime, _ = _bindings(self._blocks.device)
        kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        size, ours = self._block_bytes, self._blocks.data_ptr()
        try:
            for place, block, length in stretches:
                target, source = ours + place * size, self._first + block * size
                _checked(runtime.cudaMemcpyAsync(target, source, length * size, kind, self._stream.pointer))
        finally:
            self._stream.mark().synchronize()

    def close(self) -> None:
        """Unmap the memory, once, when nothing copies; it is free when its owner has freed it or is gone."""
        _bindings(self._blocks.device)
        _checked(self._runtime.cudaIpcCloseMemHandle(self._base))

    def _open(self, memory: bytes) -> int:
        runtime = self._runtime
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(handle.getPtr(), memory, len(memory))
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        (base,) = _checked(runtime.cudaIpcOpenMemHandle(handle, flags))
        return int(base)


def _bindings(device: torch.device) -> tuple[Any, Any]:
    """Return CUDA's runtime and driver, with `device` current on this thread for both and for torch."""
    runtime: Any = importlib.import_module("cuda.bindings.runtime")
    driver: Any = importlib.import_module("cuda.bindings.driver")
    _checked(runtime.cudaSetDevice(device.index))
    return runtime, driver


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a CUDA call without its status. Raises RuntimeError if the status is an error."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"CUDA: {status.name}")
    return tuple(values)
