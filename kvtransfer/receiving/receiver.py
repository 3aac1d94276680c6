"""Receiving one handoff: open, fetch offered blocks while the sender still computes, verify, acknowledge.

The lifecycle is drawn in `kvtransfer/handoff.py`. Once a receive has ended, in whatever way, no thread and no
call writes to its blocks any more: the engine may give them to the next sequence at once.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from functools import partial

import grpc
import structlog

from baton.worker.v1 import kvtransfer_pb2 as pb
from kvtransfer.convert import event_from_pb, reach_to_pb
from kvtransfer.errors import (
    HandoffTimeoutError,
    KVTransferError,
    LayoutMismatchError,
    PeerLostError,
    ProtocolError,
    SenderAbortedError,
    SequenceFinishedError,
    describe,
)
from kvtransfer.manifest import FINISHED, Commit, Manifest, Offer, OpenEvent, SenderAbort
from kvtransfer.pools.host_blocks import HostBlocks
from kvtransfer.pools.pool import BlockTarget, HostTarget
from kvtransfer.receiver_handoff import BlockCopy, Borrowed, ReceiveResult, ReceiverHandoff, ReceiveTask
from kvtransfer.receiving.peers import Peer, Peers, TransportContext
from kvtransfer.threads import run_to_end
from kvtransfer.transports.cuda_ipc import CudaIpcReader, CudaTransport
from kvtransfer.transports.nixl import NixlAgent
from kvtransfer.transports.transport import BlockReader, TransportMode
from runtime.process.threads import started_executor
from runtime.rpc.convert import fence_to_pb
from runtime.security.tls import FleetTls
from scheduling.request import Fence

log = structlog.get_logger()

BATCHES_PER_HANDOFF = 2
"""One is verified while the other is fetched."""
OPEN_BACKOFF_S = (0.005, 0.01, 0.02, 0.05, 0.1)
TOLD_AGAIN_S = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Pauses after which a sender out of reach is told again to free its blocks. After 30 s it does so anyway."""
TELL_S = 1.0
"""How long one call may take that tells it."""


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    no_progress_s: float = 10.0
    """Also bounds how long the sender may not know the fence yet: the commands to both workers race."""
    acknowledge_s: float = 5.0
    max_batches: int = 4
    """Batches in flight at once, over all handoffs."""


def max_blocks_in_flight(block_bytes: int, limits: ReceiverLimits) -> int:
    """Return how many blocks can be fetched into host memory, or verified there, at once."""
    return limits.max_batches * _batch_blocks(block_bytes, HostBlocks.batch_bytes)


class Receiver:
    """Receives handoffs into `target`. Lives on the event loop; copies and checksums run on threads."""

    def __init__(
        self,
        target: HostTarget,
        block_size: int,
        fingerprint: str,
        mode: TransportMode,
        limits: ReceiverLimits | None = None,
        tls: FleetTls | None = None,
        nixl: NixlAgent | None = None,
        cuda: CudaTransport | None = None,
    ) -> None:
        self.target = target
        self.pool = target.pool
        self.block_size = block_size
        self.fingerprint = fingerprint
        self.limits = limits or ReceiverLimits()
        self.executor = started_executor(2, "kv-copy")
        self.batches = asyncio.Semaphore(self.limits.max_batches)
        self.transports = TransportContext(mode, self.pool, self.executor, nixl, cuda)
        self.peers = Peers(tls)
        self._telling: set[asyncio.Task[None]] = set()
        """Calls to senders that nobody waits for."""

    async def receive(self, task: ReceiveTask) -> ReceiveResult:
        """Receive a task's blocks.

        Raises KVTransferError if they will not come, CancelledError if cancelled.
        """
        async with self.peers.lease(task.source_address, task.fence.source_incarnation) as peer:
            try:
                return await _Receive(self, peer, task).run()
            except BaseException as error:
                if not isinstance(error, PeerLostError | SenderAbortedError):
                    self._abort_soon(peer, task.fence, str(error) or "cancelled by the receiver")
                raise

    async def borrow(self, task: ReceiveTask) -> Borrowed:
        """Fetch blocks that another worker may have, for `borrows_s` at most, and return what came.

        Raises CancelledError if cancelled. Once it has ended, nothing writes to the blocks any more.
        """
        async with self.peers.lease(task.source_address, task.fence.source_incarnation) as peer:
            receive = _Receive(self, peer, task)
            error: Exception | None = None
            try:
                async with asyncio.timeout(task.borrows_s):
                    await receive.run()
            except (PeerLostError, SenderAbortedError) as caught:
                error = caught
            except (KVTransferError, TimeoutError) as caught:
                error = caught
                self._abort_soon(peer, task.fence, str(error) or "it takes too long")
            except BaseException:
                self._abort_soon(peer, task.fence, "cancelled by the borrower")
                raise
            return receive.borrowed(error)

    async def close(self) -> None:
        if self._telling:
            _, unheard = await asyncio.wait(self._telling, timeout=TELL_S)
            for telling in unheard:
                telling.cancel()
            await asyncio.gather(*unheard, return_exceptions=True)
        await self.peers.close()
        self.executor.shutdown()
        self.target.close()
        if self.transports.cuda is not None:
            self.transports.cuda.target.close()
        if self.transports.nixl is not None:
            self.transports.nixl.close()

    def _abort_soon(self, peer: Peer, fence: Fence, reason: str) -> None:
        self.tell_soon(peer, pb.AbortRequest(fence=fence_to_pb(fence), reason=reason))

    def tell_soon(self, peer: Peer, request: pb.AbortRequest | pb.AcknowledgeRequest) -> None:
        """Let the sender free its blocks now, not after its deadline."""
        telling = asyncio.create_task(self._tell(peer, request))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell(self, peer: Peer, request: pb.AbortRequest | pb.AcknowledgeRequest) -> None:
        for pause_s in (*TOLD_AGAIN_S, 0.0):
            async with self.peers.lease(peer.address, peer.incarnation) as leased:
                try:
                    if isinstance(request, pb.AbortRequest):
                        await leased.stub.Abort(request, timeout=TELL_S)
                    else:
                        await leased.stub.Acknowledge(request, timeout=TELL_S)
                except grpc.aio.AioRpcError as error:
                    is_away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                    reason = error.details()
                else:
                    return
            if not is_away:
                break
            await asyncio.sleep(pause_s)
        log.info("kv_end_unheard", peer=peer.address, reason=reason)


class _Receive:
    """The receipt of one task."""

    def __init__(self, receiver: Receiver, peer: Peer, task: ReceiveTask) -> None:
        self._receiver = receiver
        self._peer = peer
        self._task = task
        self._handoff = ReceiverHandoff(task.fence, task.blocks, task.hashes, task.num_held)
        self._batches: asyncio.Queue[list[BlockCopy] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._phase = "waiting for the sender to know the handoff"
        self._num_fetched = 0
        self._arrived: set[int] = set()
        """Indexes of blocks that are verified and in their places."""
        self._began_s = self._loop.time()
        self._opened_s: float | None = None
        self._transport = ""
        self._first_fetch_s: float | None = None
        self._committed_s = 0.0

    async def run(self) -> ReceiveResult:
        limit_s = self._receiver.limits.no_progress_s
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                reader = await self._fetch_all()
        except TimeoutError as error:
            raise HandoffTimeoutError(self._phase, limit_s) from error
        self._log_mismatches()
        if self._handoff.mismatches and isinstance(reader, CudaIpcReader):
            self._peer.leave_gpu("a block came damaged")
        await self._acknowledge()
        return self._result(reader.transport)

    async def _fetch_all(self) -> BlockReader:
        stream, manifest = await self._open()
        self._opened_s = self._loop.time()
        try:
            if self._task.borrows_s is not None:
                self._handoff.shorten(manifest.num_blocks)
            self._handoff.check_manifest(manifest, self._receiver.block_size, self._receiver.pool.block_bytes)
            reader, target = await self._choose_transport(manifest)
            self._transport = reader.transport
            async with asyncio.TaskGroup() as tasks:
                for _ in range(BATCHES_PER_HANDOFF):
                    tasks.create_task(self._fetch_batches(reader, target))
                tasks.create_task(self._listen(stream, target))
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            stream.cancel()
        assert self._handoff.is_settled, describe(self._task.fence)
        return reader

    async def _choose_transport(self, manifest: Manifest) -> tuple[BlockReader, BlockTarget]:
        """Return how to read the blocks, and what to read them into."""
        transports = self._receiver.transports
        if manifest.cuda_ipc is not None:
            reader: BlockReader = await self._peer.gpu_reader(manifest.cuda_ipc, transports)
            assert transports.cuda is not None
            target = transports.cuda.target
        else:
            reader, target = await self._peer.reader(manifest, transports), self._receiver.target
        if manifest.checksum_kind is not target.checksum_kind:
            raise LayoutMismatchError("checksum_kind", manifest.checksum_kind.name, target.checksum_kind.name)
        return reader, target

    async def _open(self) -> tuple[grpc.aio.UnaryStreamCall[pb.OpenRequest, pb.OpenResponse], Manifest]:
        """Ask until the sender knows the handoff."""
        cuda = self._receiver.transports.cuda
        request = pb.OpenRequest(
            fence=fence_to_pb(self._task.fence),
            num_held_blocks=self._task.num_held,
            fingerprint=self._receiver.fingerprint,
            cuda_reach=None if cuda is None or not self._peer.uses_gpu else reach_to_pb(cuda.reach),
            borrowing=self._borrowing(),
        )
        for backoff_s in itertools.chain(OPEN_BACKOFF_S, itertools.repeat(OPEN_BACKOFF_S[-1])):
            stream = self._peer.stub.Open(request)
            try:
                event = await self._next_event(stream)
            except _NotYetKnownError:
                if self._task.borrows_s is not None:
                    raise  # nobody is going to announce it
                await asyncio.sleep(backoff_s)
                continue
            except BaseException:
                stream.cancel()
                raise
            if not isinstance(event, Manifest):
                raise ProtocolError(f"the first event is {type(event).__name__}; accepted: Manifest")
            return stream, event
        raise AssertionError("the backoffs never end")

    def _borrowing(self) -> pb.Borrowing | None:
        limit_s = self._task.borrows_s
        if limit_s is None:
            return None
        return pb.Borrowing(block_hashes=self._task.hashes, limit_ms=max(1, round(limit_s * 1000)))

    async def _listen(
        self, stream: grpc.aio.UnaryStreamCall[pb.OpenRequest, pb.OpenResponse], target: BlockTarget
    ) -> None:
        self._phase = "waiting for the sender to compute"
        most = _batch_blocks(self._receiver.pool.block_bytes, target.batch_bytes)
        while self._handoff.committed is None:
            match await self._next_event(stream):
                case Offer() as offer:
                    copies = self._handoff.take(offer)
                    for start in range(0, len(copies), most):
                        self._batches.put_nowait(copies[start : start + most])
                case Commit() as commit:
                    self._handoff.commit(commit)
                    self._committed_s = self._loop.time()
                case SenderAbort(reason):
                    raise SequenceFinishedError(reason) if reason == FINISHED else SenderAbortedError(reason)
                case Manifest():
                    raise ProtocolError("a second manifest came")
            self._progress()
        self._phase = "fetching the last blocks"
        # Read to the end: hanging up while the sender still writes its commit would look like giving up.
        if await stream.read() is not grpc.aio.EOF:
            raise ProtocolError("an event came after the commit")
        for _ in range(BATCHES_PER_HANDOFF):
            self._batches.put_nowait(None)

    async def _fetch_batches(self, reader: BlockReader, target: BlockTarget) -> None:
        while (batch := await self._batches.get()) is not None:
            async with self._receiver.batches:
                wanted = [copy for copy in batch if self._handoff.wants(copy)]
                if wanted:
                    await self._fetch(reader, target, wanted)

    async def _fetch(self, reader: BlockReader, target: BlockTarget, copies: list[BlockCopy]) -> None:
        if self._first_fetch_s is None:
            self._first_fetch_s = self._loop.time()
        async with target.place(copies, self._task.behind) as placed:
            await reader.read(self._task.fence, placed)
            places = [copy.target_block for copy in placed]
            found = await run_to_end(self._receiver.executor, partial(target.checksums, places))
            good: dict[int, int] = {}
            indexes: list[int] = []
            for copy, place, checksum in zip(copies, places, found, strict=True):
                if self._handoff.put_checksum(copy, checksum):
                    good[place] = copy.target_block
                    indexes.append(copy.index)
            await target.accept(list(good), list(good.values()), self._task.behind)
            self._arrived.update(indexes)
        self._num_fetched += len(copies)
        self._progress()

    async def _next_event(
        self, stream: grpc.aio.UnaryStreamCall[pb.OpenRequest, pb.OpenResponse]
    ) -> OpenEvent:
        try:
            message = await stream.read()
        except grpc.aio.AioRpcError as error:
            raise self._error_of(error) from error
        if not isinstance(message, pb.OpenResponse):
            raise ProtocolError("the sender ended without a commit or an abort")
        return event_from_pb(message)

    async def _acknowledge(self) -> None:
        """Become the owner. Raises KVTransferError if the sender has broken the fence meanwhile."""
        request = pb.AcknowledgeRequest(
            fence=fence_to_pb(self._task.fence), num_corrupt_blocks=len(self._handoff.mismatches)
        )
        try:
            await self._peer.stub.Acknowledge(request, timeout=self._receiver.limits.acknowledge_s)
        except grpc.aio.AioRpcError as error:
            lost = self._error_of(error)
            if not isinstance(lost, PeerLostError):
                raise lost from error
            # Everything is here and verified, first tokens included: the sender is not needed any more.
            log.info("kv_acknowledge_unheard", fence=describe(self._task.fence), reason=str(lost))
            self._receiver.tell_soon(self._peer, request)

    def _error_of(self, error: grpc.aio.AioRpcError) -> KVTransferError:
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.NOT_FOUND:
                return _NotYetKnownError(details)
            case grpc.StatusCode.OUT_OF_RANGE:
                return SequenceFinishedError(details)
            case grpc.StatusCode.UNAVAILABLE:
                self._peer.mark_lost()
                return PeerLostError(self._peer.address, details)
            case _:
                return SenderAbortedError(details)

    def _progress(self) -> None:
        self._timeout.reschedule(self._loop.time() + self._receiver.limits.no_progress_s)

    def _log_mismatches(self) -> None:
        for mismatch in self._handoff.mismatches:
            log.error(
                "kv_block_corrupt",
                fence=describe(self._task.fence),
                index=mismatch.index,
                what=mismatch.what,
                expected=mismatch.expected,
                found=mismatch.found,
            )

    def borrowed(self, error: Exception | None) -> Borrowed:
        """Return what has come of a loan that is over."""
        num_blocks = next(index for index in itertools.count() if index not in self._arrived)
        opened_s = self._loop.time() if self._opened_s is None else self._opened_s
        return Borrowed(
            num_blocks=num_blocks,
            num_corrupt_blocks=len(self._handoff.mismatches),
            wait_s=opened_s - self._began_s,
            transport=self._transport,
            error=error,
        )

    def _result(self, transport: str) -> ReceiveResult:
        commit = self._handoff.committed
        assert commit is not None, describe(self._task.fence)
        now_s = self._loop.time()
        started_s = self._committed_s if self._first_fetch_s is None else self._first_fetch_s
        return ReceiveResult(
            num_verified_blocks=self._handoff.num_verified_blocks,
            num_corrupt_blocks=len(self._handoff.mismatches),
            num_bytes=self._num_fetched * self._receiver.pool.block_bytes,
            transport=transport,
            first_tokens=commit.first_tokens,
            total_s=now_s - min(started_s, self._committed_s),
            exposed_s=now_s - self._committed_s,
        )


class _NotYetKnownError(KVTransferError):
    pass


def _batch_blocks(block_bytes: int, batch_bytes: int) -> int:
    return max(1, batch_bytes // block_bytes)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that came first: the tasks of one receive fail together."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
