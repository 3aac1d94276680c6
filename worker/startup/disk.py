"""Opens the disk that a worker's flags ask for."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.calibration.pool_size import MEBIBYTE
from engine.kv.kv_pool import KVPool
from kvtransfer.disk.tier import DiskTier, Folder


class DiskOpener:
    """Makes the folder at once, so that a wrong path is refused before a model is loaded, and the tier later.

    Raises ValueError naming the flag, its value and what would be accepted.
    """

    def __init__(self, path: Path, budget_mb: int, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"--kv-disk is {str(path)!r} on {device}; accepted: a worker on a CPU")
        self._budget_mb = budget_mb
        try:
            self._folder = Folder(path)
        except OSError as error:
            raise ValueError(
                f"--kv-disk is {str(path)!r} ({error.strerror}); accepted: a folder that this process can "
                "write to, or make"
            ) from error
        self.tier: DiskTier | None = None

    def open(self, pool: KVPool, identity: str) -> DiskTier:
        """Return the tier for the blocks of `pool`, and remember it."""
        try:
            self.tier = DiskTier(self._folder, self._budget_mb * MEBIBYTE, pool, identity)
        except ValueError as error:
            raise ValueError(
                f"--kv-disk-mb is {self._budget_mb}; accepted: enough for a block ({error})"
            ) from error
        return self.tier
