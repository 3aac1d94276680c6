"""Copies between the host and a device, within a step and beside the steps.

Within a step there is one copy up, one down, and no wait that keeps a core busy. A copy costs some
microseconds whatever its size, and from pageable memory it also stops the host until everything before it has
run. On a CPU there is nothing to copy.

Copies beside the steps have a CUDA stream of their own. On a CPU they are done at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.report import Mark

ALIGNMENT = 128
"""Bytes: a cache line. Kernels are compiled anew for a pointer that is less aligned than to 16."""
MIN_BYTES = 1 << 16


class Event(Protocol):
    """A point in a stream's work, as `torch.cuda.Event`."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def sleeping_event() -> Event:
    """Return an event whose waiter sleeps; by default it would spin, and take a core from other threads."""
    cuda: Any = torch.cuda
    event: Event = cuda.Event(blocking=True)
    return event


class StepUpload:
    """Copies a step's columns to `device` in one piece.

    Two staging buffers take turns, each with an event behind the last copy out of it. So a step can be packed
    while the previous one is on its way, without overwriting it.
    """

    def __init__(self, device: torch.device, new_event: Callable[[], Event] = sleeping_event) -> None:
        self._device = device
        self._buffers = [_Staging(device, new_event()) for _ in range(2)]

    def __call__(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Return the columns as contiguous tensors of the same shapes and dtypes, in the current stream."""
        places, num_bytes = _places(columns)
        self._buffers.reverse()
        staging = self._buffers[0].writable(num_bytes)
        packed = staging.numpy()
        for column, begin in zip(columns, places, strict=True):
            part = packed[begin : begin + column.nbytes].view(column.dtype)
            part.reshape(column.shape)[...] = column
        there = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        there.copy_(staging, non_blocking=True)
        self._buffers[0].copied.record()
        return [
            there[begin : begin + column.nbytes].view(_DTYPES[column.dtype]).view(column.shape)
            for column, begin in zip(columns, places, strict=True)
        ]


_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}


def _places(columns: Sequence[NDArray[Any]]) -> tuple[list[int], int]:
    """Return the first byte of each column, and the number of bytes of all."""
    places, end = [], 0
    for column in columns:
        places.append(end)
        end += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


class _Staging:
    """Host memory that a copy may still read."""

    def __init__(self, device: torch.device, copied: Event) -> None:
        self._is_pinned = device.type == "cuda"
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.copied = copied
        """Recorded behind each copy; an event that was never recorded counts as reached."""

    def writable(self, num_bytes: int) -> Tensor:
        """Return [num_bytes] uint8 once the last copy from it is over."""
        self.copied.synchronize()
        if len(self._memory) < num_bytes:
            # By doubling: growing tables must not allocate pinned memory at each step.
            size = max(MIN_BYTES, 1 << (num_bytes - 1).bit_length())
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
        return self._memory[:num_bytes]


def upload(column: NDArray[Any], device: torch.device) -> Tensor:
    """Copy one column to `device` in the current stream, without waiting for what runs there.

    On a CPU the tensor is the column itself.
    """
    tensor = torch.from_numpy(column)
    # From pageable memory the copy would make this thread wait for everything before it in the stream.
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def upload_ids(ids: Sequence[int], device: torch.device) -> Tensor:
    """Copy numbers to `device` as [n] int64; see `upload`."""
    return upload(np.array(ids, dtype=np.int64), device)


class Download:
    """A tensor on its way to the host, with the value it has at this point of the current stream."""

    def __init__(self, tensor: Tensor) -> None:
        self._there = tensor
        self._copied: Event | None = None
        if tensor.device.type != "cpu":
            # torch reuses pinned memory once its copies are over.
            self._there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._there.copy_(tensor, non_blocking=True)
            self._copied = sleeping_event()
            self._copied.record()

    def wait(self) -> NDArray[Any]:
        """Wait, and return its numbers; for a tensor on the host they are the tensor's own memory."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._there.numpy()


class CopyStream:
    """Does its work in the order in which threads put it there; on a CPU, when they do."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's has no types

    @property
    def pointer(self) -> int:
        """The stream's address, for CUDA's own calls."""
        return 0 if self._stream is None else int(self._stream.cuda_stream)

    @contextlib.contextmanager
    def behind(self, mark: Mark | None) -> Iterator[None]:
        """Put the device work of a `with` block on this stream, after `mark`, of any stream."""
        if self._stream is None:
            yield
            return
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event)
            self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        """Return a mark behind everything put here so far."""
        return _DoneMark() if self._stream is None else _record(self._stream)


def mark_steps(device: torch.device) -> Mark:
    """Return a mark behind everything that the calling thread, which runs the steps, has put on `device`."""
    if device.type != "cuda":
        return _DoneMark()
    return _record(torch.cuda.current_stream(device))


def delay_steps(device: torch.device, mark: Mark) -> None:
    """Let later device work of the calling thread wait for `mark`; the thread itself does not wait."""
    if device.type == "cuda":
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(device).wait_event(mark)


def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    # Blocking: a thread that spins until the device is done would take a core from threads that compute.
    event = torch.cuda.Event(  # type: ignore[no-untyped-call]  # torch's has no types
        enable_timing=True, blocking=True
    )
    event.record(stream)
    return event


class _DoneMark:
    """A mark on a CPU: everything before it was done when it was made."""

    def __init__(self) -> None:
        self._made_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: _DoneMark, /) -> float:
        return (later._made_s - self._made_s) * 1000
