"""Opens the tiers for blocks that leave the pool that a worker's flags ask for: host memory and a disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.calibration.pool_size import MEBIBYTE
from engine.kv.kv_pool import KVPool
from engine.kv.swap_space import default_slots
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from worker.handoff.staging import staging_bytes
from worker.handoff.tier_slots import copies_for


class TiersOpener:
    """Makes the folder at once, so that a wrong path is refused before a model is loaded; the tiers later.

    `host_mb` is 0 without host memory, and `path` is None without a disk; one of the two is given.
    `available_bytes` returns the memory that is left on this machine. Raises ValueError naming the flag, its
    value and what would be accepted.
    """

    def __init__(
        self,
        device: torch.device,
        host_mb: int,
        path: Path | None,
        disk_mb: int,
        available_bytes: Callable[[], int],
    ) -> None:
        if device.type != "cpu":
            chosen = f"--kv-host-memory-mb is {host_mb}" if path is None else f"--kv-disk is {str(path)!r}"
            raise ValueError(f"{chosen} on {device}; accepted: a worker on a CPU")
        self._host_mb, self._disk_mb = host_mb, disk_mb
        self._available_bytes = available_bytes
        self._folder = None if path is None else _folder(path)
        self.tiers: Tiers | None = None

    def open(self, pool: KVPool, identity: str) -> Tiers:
        """Return the tiers for the blocks of `pool`, and remember them."""
        if self._host_mb:
            self._check_host_memory(pool)
        disk = None
        if self._folder is not None:
            disk = DiskSettings(self._folder, self._disk_mb * MEBIBYTE, identity)
        try:
            self.tiers = Tiers(pool, self._host_mb * MEBIBYTE, disk, copies_for(pool))
        except ValueError as error:
            raise ValueError(
                f"--kv-disk-mb is {self._disk_mb}; accepted: enough for a block ({error})"
            ) from error
        except RuntimeError as error:
            if not self._host_mb:
                raise
            raise ValueError(
                f"--kv-host-memory-mb is {self._host_mb}, which CUDA does not page-lock ({error}); accepted: "
                "less"
            ) from error
        return self.tiers

    def _check_host_memory(self, pool: KVPool) -> None:
        chosen = f"--kv-host-memory-mb is {self._host_mb}"
        least = -(-pool.block_bytes // MEBIBYTE)
        if self._host_mb < least:
            raise ValueError(
                f"{chosen}; accepted: 0, or from {least}, since a block takes {pool.block_bytes} bytes"
            )
        left_mb = max(0, self._available_bytes() - _untaken_bytes(pool)) // MEBIBYTE
        if self._host_mb > left_mb:
            raise ValueError(
                f"{chosen}, but weights and KV leave {left_mb} MiB of memory; accepted: 0 to {left_mb}"
            )


def _untaken_bytes(pool: KVPool) -> int:
    """Return the host memory that the engine and handoffs are still going to take."""
    if pool.fd is None:
        return default_slots(pool.tensor) * pool.block_bytes + staging_bytes(pool)
    # The pool's pages are taken when they are first written to, which most of them were not.
    return pool.num_blocks * pool.block_bytes


def _folder(path: Path) -> Folder:
    try:
        return Folder(path)
    except OSError as error:
        raise ValueError(
            f"--kv-disk is {str(path)!r} ({error.strerror}); accepted: a folder that this process can "
            "write to, or make"
        ) from error
