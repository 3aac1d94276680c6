"""A GPU's memory shared between processes of one host, by CUDA IPC.

By NVIDIA's own bindings, which torch for CUDA brings along: torch's way of sharing tensors counts references
in files that a killed process leaves behind. An allocation may hold more than the pool, so a handle says
where the pool begins.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.device.copy_stream import copy_stream

_HANDLE = struct.Struct("<64sQ")
"""CUDA's handle of the allocation; the pool's first byte in it."""


def gpu_uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def gpus_in_reach(device: torch.device) -> tuple[str, ...]:
    """UUIDs of `device` itself and of those visible here that it can read from."""
    own = torch.empty(0, device=device).device  # with its index
    visible = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return tuple(
        gpu_uuid(other) for other in visible if other == own or torch.cuda.can_device_access_peer(own, other)
    )


def share(pool: Tensor) -> bytes:
    """A handle of `pool`'s memory, for any number of processes; they must be done with it before it is freed.

    Raises RuntimeError where CUDA refuses, and ImportError where its bindings are missing.
    """
    runtime, driver = _bindings(pool.device)
    base, _ = _done(driver.cuMemGetAddressRange(pool.data_ptr()))
    (handle,) = _done(runtime.cudaIpcGetMemHandle(int(base)))
    return _HANDLE.pack(ctypes.string_at(handle.getPtr(), 64), pool.data_ptr() - int(base))


class PeerBlocks:
    """The blocks of another process, mapped, and copied to `blocks` [n, ...] on a GPU here.

    A block is a copy of its own or part of a longer one: the two megabytes that one of an 8B model has take
    about as long as a launch on one GPU, and longer between two.
    """

    def __init__(self, handle: bytes, num_blocks: int, blocks: Tensor) -> None:
        """Raises ValueError for what is no handle or of a smaller pool, else as `share`."""
        if len(handle) != _HANDLE.size:
            raise ValueError(f"the handle has {len(handle)} bytes; accepted: {_HANDLE.size}")
        memory, offset = _HANDLE.unpack(handle)
        self._blocks = blocks
        self._block_bytes = blocks[0].nbytes
        self._stream = copy_stream(blocks.device)
        self._runtime, driver = _bindings(blocks.device)
        self._base = self._open(memory)
        _, size = _done(driver.cuMemGetAddressRange(self._base))
        if offset + num_blocks * self._block_bytes > size:
            self.close()
            raise ValueError(f"{num_blocks} blocks from {offset} on were announced; there are {size} bytes")
        self._first = self._base + offset

    def fetch(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Copies (place in `blocks`, block of theirs, blocks). From any thread.

        However it ends, nothing is copied any more. Raises RuntimeError where CUDA fails.
        """
        runtime, _ = _bindings(self._blocks.device)
        kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        size, ours = self._block_bytes, self._blocks.data_ptr()
        try:
            for place, block, length in stretches:
                target, source = ours + place * size, self._first + block * size
                _done(runtime.cudaMemcpyAsync(target, source, length * size, kind, self._stream.pointer))
        finally:
            self._stream.mark().synchronize()

    def close(self) -> None:
        """Once, when nothing copies. The memory is then free as soon as its owner is gone or frees it."""
        _bindings(self._blocks.device)
        _done(self._runtime.cudaIpcCloseMemHandle(self._base))

    def _open(self, memory: bytes) -> int:
        runtime = self._runtime
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(handle.getPtr(), memory, len(memory))
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        (base,) = _done(runtime.cudaIpcOpenMemHandle(handle, flags))
        return int(base)


def _bindings(device: torch.device) -> tuple[Any, Any]:
    """The CUDA runtime and driver, with `device` current on this thread, for both and for torch."""
    runtime: Any = importlib.import_module("cuda.bindings.runtime")
    driver: Any = importlib.import_module("cuda.bindings.driver")
    _done(runtime.cudaSetDevice(device.index))
    return runtime, driver


def _done(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call answers besides its status, which every answer begins with."""
    status, *found = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA: {status.name}")
    return tuple(found)
