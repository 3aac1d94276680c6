"""Where copies run beside the steps: on a CUDA stream of their own. On a CPU they are done when asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from engine.core.report import Mark


class CopyStream(Protocol):
    """Does what is put into it in that order, whichever thread puts it there."""

    @property
    def pointer(self) -> int:
        """For CUDA's own calls."""
        ...

    def behind(self, mark: Mark | None) -> AbstractContextManager[None]:
        """What the block puts on the device goes here and waits for `mark`, of whichever stream."""
        ...

    def mark(self) -> Mark:
        """Behind everything put here so far."""
        ...


def copy_stream(device: torch.device) -> CopyStream:
    """A new one."""
    return _CudaStream(device) if device.type == "cuda" else _NoStream()


def mark_steps(device: torch.device) -> Mark:
    """Behind everything that the calling thread, the one of the steps, has put on `device`."""
    if device.type != "cuda":
        return _DoneMark()
    return _record(torch.cuda.current_stream(device))


def hold_steps(device: torch.device, mark: Mark) -> None:
    """What the calling thread puts on `device` from here on waits for `mark`; the thread itself does not."""
    if device.type == "cuda":
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(device).wait_event(mark)


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's has no types

    @property
    def pointer(self) -> int:
        return int(self._stream.cuda_stream)

    @contextlib.contextmanager
    def behind(self, mark: Mark | None) -> Iterator[None]:
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event)
            self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        return _record(self._stream)


def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    # Blocking: a thread that spins until the device is done takes a core from those that compute.
    event = torch.cuda.Event(  # type: ignore[no-untyped-call]  # torch's has no types
        enable_timing=True, blocking=True
    )
    event.record(stream)
    return event


class _NoStream:
    pointer = 0

    def behind(self, mark: Mark | None) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def mark(self) -> Mark:
        return _DoneMark()


class _DoneMark:
    """On a CPU what is behind a mark was done before it was made."""

    def __init__(self) -> None:
        self._made_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: _DoneMark, /) -> float:
        return (later._made_s - self._made_s) * 1000
