"""The senders that a receiver talks to: one connection and one mapping for each process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import grpc
import structlog

from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.errors import ProtocolError, TransportUnavailableError
from kvtransfer.manifest import CudaPool, Manifest
from kvtransfer.pools.pool import BlockPool
from kvtransfer.threads import run_to_end
from kvtransfer.transports import shm
from kvtransfer.transports.cuda_ipc import CudaIpcReader, CudaTransport
from kvtransfer.transports.grpc import GrpcReader
from kvtransfer.transports.nixl import NixlAgent, NixlReader
from kvtransfer.transports.transport import BlockReader, TransportMode
from runtime.security.tls import CertificateRole, FleetTls, open_channel

log = structlog.get_logger()

CHANNEL_OPTIONS = (
    # Half-open links are found within seconds, even while a long chunk is computed and nothing is sent.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this, a restarted process inherits its predecessor's reconnect backoff.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class TransportContext:
    """The transports that a receiver has, and the pool that it reads into."""

    mode: TransportMode
    pool: BlockPool
    executor: Executor
    nixl: NixlAgent | None = None
    """Has `pool` registered; None if NIXL is missing or may not be used."""
    cuda: CudaTransport | None = None
    """None if there is no GPU, or its memory may not be shared."""


class Peer:
    """One sender process, by address and incarnation; `on_lost` is called once it is found to be gone."""

    def __init__(
        self, address: str, incarnation: str, on_lost: Callable[[], None], tls: FleetTls | None = None
    ) -> None:
        self.address = address
        self.incarnation = incarnation
        self.leases = 0
        self.is_lost = False
        self.channel = open_channel(tls, address, CertificateRole.WORKER, CHANNEL_OPTIONS)
        self.stub: pb_grpc.KVTransferServiceAsyncStub = pb_grpc.KVTransferServiceStub(self.channel)
        self._on_lost = on_lost
        self.uses_gpu = True
        """False once its GPU's memory, although in reach, could not be mapped or read, or came damaged."""
        self._reader: BlockReader | None = None
        self._gpu_reader: CudaIpcReader | None = None
        self._watching: asyncio.Task[None] | None = None
        self._probing = asyncio.Lock()

    def mark_lost(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()

    async def reader(self, manifest: Manifest, transports: TransportContext) -> BlockReader:
        """Return the reader of this sender's blocks in host memory; transports are probed on first use."""
        async with self._probing:
            if self._reader is None:
                self._reader = await self._probe(manifest, transports)
            return self._reader

    async def gpu_reader(self, pool: CudaPool, transports: TransportContext) -> CudaIpcReader:
        """Return the reader of this sender's blocks on its GPU, which are mapped on first use.

        Raises TransportUnavailableError if that fails.
        """
        async with self._probing:
            if self._gpu_reader is None:
                self._gpu_reader = await self._map(pool, transports)
            return self._gpu_reader

    def leave_gpu(self, reason: str) -> None:
        """Let handoffs that open from now on use another transport."""
        if self.uses_gpu:
            self.uses_gpu = False
            log.warning("kv_transport_fallback", peer=self.address, reason=reason)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for reader in (self._reader, self._gpu_reader):
            if reader is not None:
                await reader.close()
        await self.channel.close()

    async def _map(self, pool: CudaPool, transports: TransportContext) -> CudaIpcReader:
        cuda = transports.cuda
        if cuda is None:
            raise ProtocolError(f"blocks were offered on GPU {pool.gpu}, which this receiver did not ask for")
        try:
            mapped = await run_to_end(transports.executor, lambda _: cuda.map(pool))
        except TransportUnavailableError as error:
            self.leave_gpu(str(error))
            raise
        self._watching = asyncio.create_task(self._watch(), name="peer-watch")
        return CudaIpcReader(mapped, pool, transports.executor, partial(self.leave_gpu, "a read failed"))

    async def _watch(self) -> None:
        """Unmap the memory once the sender is gone: its successor needs it."""
        await self.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        self.mark_lost()

    async def _probe(self, manifest: Manifest, transports: TransportContext) -> BlockReader:
        """Return a reader by the best transport that works; only `auto` falls back to another."""
        if transports.mode is not TransportMode.AUTO:
            return await self._connect(transports.mode, manifest, transports)
        obstacles: list[str] = []
        for mode in (TransportMode.SHM, TransportMode.NIXL, TransportMode.GRPC):
            if mode is TransportMode.NIXL and (manifest.nixl is None or transports.nixl is None):
                continue
            try:
                reader = await self._connect(mode, manifest, transports)
            except TransportUnavailableError as error:
                obstacles.append(str(error))
                continue
            if obstacles:
                reason = "; ".join(obstacles)
                log.warning("kv_transport_fallback", peer=self.address, used=mode.value, reason=reason)
            return reader
        raise AssertionError("gRPC needs no probing")

    async def _connect(
        self, mode: TransportMode, manifest: Manifest, transports: TransportContext
    ) -> BlockReader:
        """Return a reader by this transport; raise TransportUnavailableError if it does not work."""
        match mode:
            case TransportMode.GRPC:
                return GrpcReader(transports.pool, self.stub, self.address, self.mark_lost)
            case TransportMode.NIXL if manifest.nixl is not None and transports.nixl is not None:
                return NixlReader(transports.nixl, manifest.nixl, transports.executor, self.mark_lost)
            case TransportMode.SHM if manifest.shm_socket:
                return await shm.connect(
                    transports.pool,
                    manifest.shm_socket,
                    self.incarnation,
                    transports.executor,
                    self.mark_lost,
                )
            case TransportMode.NIXL:
                lacking = f"{'the sender' if manifest.nixl is None else 'this process'} has no NIXL"
            case TransportMode.SHM:
                lacking = "the sender offers no shared memory"
            case _:
                lacking = "the sender offers no GPU memory that this process reaches"
        raise TransportUnavailableError(mode.value, self.address, lacking)


class Peers:
    """Hands out peers, and closes unused ones that are gone or were replaced."""

    def __init__(self, tls: FleetTls | None = None) -> None:
        self._tls = tls
        self._peers: dict[tuple[str, str], Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._peers)

    @contextlib.asynccontextmanager
    async def lease(self, address: str, incarnation: str) -> AsyncIterator[Peer]:
        """Keep a peer open until the lease ends, and afterwards for the next lease unless it is lost."""
        peer = self._take(address, incarnation)
        peer.leases += 1
        try:
            yield peer
        finally:
            peer.leases -= 1
            if peer.is_lost and peer.leases == 0:
                await peer.close()

    async def close(self) -> None:
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.close()
        await asyncio.gather(*self._closing)

    def _take(self, address: str, incarnation: str) -> Peer:
        peer = self._peers.get((address, incarnation))
        if peer is None:
            for other in [peer for peer in self._peers.values() if peer.address == address]:
                other.mark_lost()  # an address belongs to one process at a time
            peer = self._peers[address, incarnation] = Peer(address, incarnation, self._drop_lost, self._tls)
        return peer

    def _drop_lost(self) -> None:
        """Forget lost peers, and close those that are not in use; the last lease closes the others."""
        for key, peer in list(self._peers.items()):
            if peer.is_lost:
                del self._peers[key]
                if peer.leases == 0:
                    closing = asyncio.create_task(peer.close(), name="peer-close")
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)
