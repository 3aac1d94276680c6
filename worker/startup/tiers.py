"""Opens the tiers for blocks that leave the pool that a worker's flags ask for: host memory and a disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from engine.calibration.pool_size import MEBIBYTE
from engine.kv.kv_pool import KVPool
from engine.kv.swap_space import default_slots
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder, FolderRefusedError
from kvtransfer.tiers.tiers import STAGING_BYTES, Tiers, num_staged_blocks
from worker.handoff.staging import staging_bytes
from worker.handoff.tier_slots import LOCKED_STAGING_BYTES, copies_for

log = structlog.get_logger()


class TiersOpener:
    """Makes the folder at once, so that a wrong path is refused before a model is loaded; the tiers later.

    `host_mb` is 0 without host memory, and `path` is None without a disk; one of the two is given.
    `available_bytes` returns the memory that is left on this machine. Raises ValueError naming the flag, its
    value and what would be accepted.
    """

    def __init__(
        self, host_mb: int, path: Path | None, disk_mb: int, available_bytes: Callable[[], int]
    ) -> None:
        self._host_mb, self._disk_mb = host_mb, disk_mb
        self._available_bytes = available_bytes
        self._folder = None if path is None else _folder(path)

    def open(self, pool: KVPool, identity: str, max_context: int) -> Tiers:
        """Return the tiers for the blocks of `pool`, of sequences of `max_context` tokens at most.

        `identity` names what else decides on the bytes of a block.
        """
        self._check_host_memory(pool, max_context)
        disk = None
        if self._folder is not None:
            disk = DiskSettings(self._folder, self._disk_mb * MEBIBYTE, identity)
        staged = STAGING_BYTES if pool.fd is not None else LOCKED_STAGING_BYTES
        try:
            tiers = Tiers(pool, self._host_mb * MEBIBYTE, disk, copies_for(pool), staged)
        except ValueError as error:
            raise ValueError(
                f"--kv-disk-mb is {self._disk_mb}; accepted: enough for a block ({error})"
            ) from error
        except RuntimeError as error:  # CUDA's
            accepted = "less" if self._host_mb else "no disk"
            raise ValueError(
                f"{self._chosen}, for which CUDA has no memory ({error}); accepted: {accepted}"
            ) from error
        if pool.fd is None:
            reason = "copies between a GPU and its tiers were tested on a CPU, and have not run on a GPU"
            log.warning("kv_tiers_untried", device=str(pool.device), reason=reason)
        return tiers

    @property
    def _chosen(self) -> str:
        if self._host_mb or self._folder is None:
            return f"--kv-host-memory-mb is {self._host_mb}"
        return f"--kv-disk is {str(self._folder.path)!r}"

    def _check_host_memory(self, pool: KVPool, max_context: int) -> None:
        """Raise ValueError unless there is memory for the budget, and for blocks on their way to a disk."""
        least = -(-pool.block_bytes // MEBIBYTE)
        if 0 < self._host_mb < least:
            raise ValueError(
                f"{self._chosen}; accepted: 0, or from {least}, since a block takes {pool.block_bytes} bytes"
            )
        staged_mb = self._staged_mb(pool)
        left_mb = max(0, self._available_bytes() - _untaken_bytes(pool, max_context)) // MEBIBYTE
        if self._host_mb + staged_mb <= left_mb:
            return
        others = "handoffs and preempted sequences" if pool.fd is None else "weights and KV"
        staged = f", and blocks on their way to the disk take {staged_mb}" if staged_mb else ""
        accepted = f"0 to {max(0, left_mb - staged_mb)}" if self._host_mb else "no disk"
        raise ValueError(
            f"{self._chosen}, but {others} leave {left_mb} MiB of memory{staged}; accepted: {accepted}"
        )

    def _staged_mb(self, pool: KVPool) -> int:
        """Return the memory that is page-locked for blocks on their way to the disk."""
        if self._folder is None or pool.fd is not None:
            return 0
        return -(-num_staged_blocks(pool, LOCKED_STAGING_BYTES) * pool.block_bytes // MEBIBYTE)


def _untaken_bytes(pool: KVPool, max_context: int) -> int:
    """Return the host memory that the engine and handoffs are still going to take."""
    if pool.fd is None:
        return default_slots(pool.tensor) * pool.block_bytes + staging_bytes(pool, max_context)
    # The pool's pages are taken when they are first written to, which most of them were not.
    return pool.num_blocks * pool.block_bytes


def _folder(path: Path) -> Folder:
    try:
        return Folder(path)
    except FolderRefusedError as error:
        raise ValueError(
            f"--kv-disk is {str(path)!r}, {error}; accepted: a folder of this process's user that nobody "
            "else can write to, or a path where it can make one"
        ) from error
    except OSError as error:
        raise ValueError(
            f"--kv-disk is {str(path)!r} ({error.strerror}); accepted: a folder that this process can "
            "write to, or make"
        ) from error
