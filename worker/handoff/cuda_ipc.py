"""Decides whether this worker's KV goes from GPU to GPU, and builds the parts for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from engine.core.report import Mark
from engine.kv.block_checksums import BlockChecksums
from engine.kv.gpu_sharing import PeerBlocks, gpu_uuid, gpus_in_reach, share
from engine.kv.kv_pool import KVPool
from kvtransfer.errors import TransportUnavailableError
from kvtransfer.manifest import CudaPool, CudaReach
from kvtransfer.pools.on_device import DeviceSource, DeviceTarget
from kvtransfer.transports.cuda_ipc import CudaTransport
from kvtransfer.transports.transport import TransportMode
from worker.errors import StartupError

log = structlog.get_logger()


class PoolBlocks:
    """Implements `kvtransfer.pools.on_device.DeviceBlocks` for `pool`."""

    def __init__(self, pool: KVPool) -> None:
        self._checksums = BlockChecksums(pool.tensor)

    def wait(self, behind: Mark | None) -> None:
        if behind is not None:
            behind.synchronize()

    def checksums(self, blocks: Sequence[int]) -> list[int]:
        return self._checksums.of(blocks)


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """The source and the pool that a sender offers on its GPU."""

    source: DeviceSource
    pool: CudaPool


def offer_of(mode: TransportMode, pool: KVPool) -> DeviceOffer | None:
    """Return the sender's offer; None if the pool is not on a GPU, or may not be shared."""
    if not _may_share(mode, pool):
        return None
    try:
        handle = share(pool.tensor)
    except (RuntimeError, ImportError) as error:
        if mode is TransportMode.CUDA_IPC:
            raise StartupError(f"--transport is cuda_ipc; sharing the GPU's memory fails: {error}") from error
        log.warning("cuda_ipc_unusable", reason=str(error))
        return None
    cuda = CudaPool(host_identity(), gpu_uuid(pool.device), handle, pool.num_blocks)
    return DeviceOffer(DeviceSource(PoolBlocks(pool)), cuda)


def cuda_transport_of(mode: TransportMode, pool: KVPool) -> CudaTransport | None:
    """Return how to receive into `pool` from GPUs in reach; None as for `offer_of`."""
    if not _may_share(mode, pool):
        return None
    reach = CudaReach(host_identity(), gpus_in_reach(pool.device))
    log.info("cuda_ipc_reach", gpus=reach.gpus)
    return CudaTransport(reach, DeviceTarget(PoolBlocks(pool)), partial(map_blocks, pool))


def map_blocks(pool: KVPool, theirs: CudaPool) -> PeerBlocks:
    """Map the blocks of a sender, to copy them into `pool`. Raises TransportUnavailableError."""
    try:
        return PeerBlocks(theirs.handle, theirs.num_blocks, pool.tensor)
    except (ValueError, RuntimeError, ImportError) as error:
        raise TransportUnavailableError("cuda_ipc", theirs.gpu, str(error)) from error


def host_identity(proc: Path = Path("/proc")) -> str:
    """Return a name that is equal for processes between which CUDA maps memory.

    They have the boot, the user, and the process and IPC namespaces in common. Two containers on one machine
    cannot map each other's memory, even on one GPU, unless they share those namespaces. The name is empty if
    the system does not say; then no GPU is in reach.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespaces = [str((proc / "self/ns" / kind).readlink()) for kind in ("pid", "ipc")]
    except OSError:
        return ""
    return " ".join([boot, *namespaces, str(os.getuid())])


def _may_share(mode: TransportMode, pool: KVPool) -> bool:
    if pool.device.type == "cuda":
        return mode in (TransportMode.AUTO, TransportMode.CUDA_IPC)
    if mode is TransportMode.CUDA_IPC:
        raise StartupError(f"--transport is cuda_ipc and the KV pool is on {pool.device}; accepted: a GPU")
    return False
