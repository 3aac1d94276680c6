"""Forbids code to wait for the GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Let PyTorch raise RuntimeError where the CPU would wait for the GPU."""
    with warnings.catch_warnings():
        # Turning the mode on warns that it is a prototype, and warnings are errors in tests.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
