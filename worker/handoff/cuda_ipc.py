"""Whether this worker's KV goes from GPU to GPU, and by what."""

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

MODES = (TransportMode.AUTO, TransportMode.CUDA_IPC)


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
    """What a sender offers on its GPU."""

    source: DeviceSource
    pool: CudaPool


def offer_of(mode: TransportMode, pool: KVPool) -> DeviceOffer | None:
    """None where the pool is not a GPU's or nobody wants it shared."""
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
    """How to receive into `pool` from GPUs in reach; None as for `offer_of`."""
    if not _may_share(mode, pool):
        return None
    reach = CudaReach(host_identity(), gpus_in_reach(pool.device))
    log.info("cuda_ipc_reach", gpus=reach.gpus)
    return CudaTransport(reach, DeviceTarget(PoolBlocks(pool)), partial(map_blocks, pool))


def map_blocks(pool: KVPool, theirs: CudaPool) -> PeerBlocks:
    """The blocks of a sender, to be copied into `pool`; raises TransportUnavailableError."""
    try:
        return PeerBlocks(theirs.handle, theirs.num_blocks, pool.tensor)
    except (ValueError, RuntimeError, ImportError) as error:
        raise TransportUnavailableError("cuda_ipc", theirs.gpu, str(error)) from error


def host_identity(proc: Path = Path("/proc")) -> str:
    """Equal for processes between which CUDA maps memory: of one boot, user, and process and IPC namespace.

    Two containers on one machine have a GPU in common and cannot map each other's memory unless they share
    those namespaces. Empty where the system does not say, and then nobody is taken for a neighbour.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespaces = [str((proc / "self/ns" / kind).readlink()) for kind in ("pid", "ipc")]
    except OSError:
        return ""
    return " ".join([boot, *namespaces, str(os.getuid())])


def _may_share(mode: TransportMode, pool: KVPool) -> bool:
    if pool.device.type == "cuda":
        return mode in MODES
    if mode is TransportMode.CUDA_IPC:
        raise StartupError(f"--transport is cuda_ipc and the KV pool is on {pool.device}; accepted: a GPU")
    return False
