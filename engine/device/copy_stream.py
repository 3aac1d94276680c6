"""Copies beside the steps, on a CUDA stream of their own. On a CPU they are done at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from engine.core.report import Mark


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
