"""KVTransferService: gRPC for receivers. Decisions are in `sender.py` and `kvtransfer/handoff.py`."""

from __future__ import annotations

from typing import Any, Never

import grpc

from baton.worker.v1 import kvtransfer_pb2 as pb
from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.convert import event_to_pb, reach_from_pb
from kvtransfer.errors import (
    FenceBrokenError,
    KVTransferError,
    LayoutMismatchError,
    ProtocolError,
    UnknownFenceError,
)
from kvtransfer.manifest import FINISHED, CudaPool, Manifest, NixlPool
from kvtransfer.pools.pool import HostSource
from kvtransfer.sending.lending import Lending
from kvtransfer.sending.sender import Handoffs, Sending
from kvtransfer.transports.cuda_ipc import is_in_reach
from kvtransfer.transports.grpc import cut_pieces
from runtime.rpc.convert import fence_from_pb
from scheduling.request import Fence


def status_of(error: KVTransferError) -> grpc.StatusCode:
    """Return the status of an error: NOT_FOUND may be retried, OUT_OF_RANGE means an ended sequence."""
    if isinstance(error, UnknownFenceError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, FenceBrokenError) and error.reason == FINISHED:
        return grpc.StatusCode.OUT_OF_RANGE
    if isinstance(error, ProtocolError):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.FAILED_PRECONDITION


class KVTransferService(pb_grpc.KVTransferServiceServicer):
    """Serves handoffs; receivers that do not reach the device read from `source`."""

    def __init__(
        self,
        handoffs: Handoffs,
        source: HostSource,
        *,
        fingerprint: str,
        block_size: int,
        shm_socket: str = "",
        nixl: NixlPool | None = None,
        cuda: CudaPool | None = None,
        lending: Lending | None = None,
    ) -> None:
        """`cuda` is the pool of the handoffs' source on a device, if there is one.

        Without `lending`, only attempts fetch blocks.
        """
        self._handoffs = handoffs
        self._source = source
        self._pool = source.pool
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._shm_socket = shm_socket
        self._nixl = nixl
        self._cuda = cuda
        self._lending = lending

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service; return its full name, for reflection."""
        pb_grpc.add_KVTransferServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["KVTransferService"].full_name

    # Written through the context, not yielded: so a call that breaks ends this coroutine at once.
    async def Open(  # type: ignore[override]
        self, request: pb.OpenRequest, context: grpc.aio.ServicerContext[pb.OpenRequest, pb.OpenResponse]
    ) -> None:
        fence = fence_from_pb(request.fence)
        try:
            if request.fingerprint != self._fingerprint:
                raise LayoutMismatchError("fingerprint", request.fingerprint, self._fingerprint)
            if request.HasField("borrowing"):
                await self._lend(fence, request.borrowing)
            cuda = self._within(request.cuda_reach)
            opened = self._handoffs.open(fence, request.num_held_blocks, reaches_device=cuda is not None)
        except KVTransferError as error:
            await _refuse(context, error)
        is_complete = False
        try:
            await context.write(event_to_pb(self._manifest(opened, cuda)))
            async for event in self._handoffs.events(opened):
                await context.write(event_to_pb(event))
            is_complete = True
        finally:
            if not is_complete:
                self._handoffs.give_up(fence, "the receiver's call broke")

    async def Fetch(  # type: ignore[override]
        self, request: pb.FetchRequest, context: grpc.aio.ServicerContext[pb.FetchRequest, pb.FetchResponse]
    ) -> None:
        fence = fence_from_pb(request.fence)
        try:
            sending = self._handoffs.find(fence)
            handoff = sending.handoff
            places = handoff.locate(fence, request.indexes)
            if sending.source is not self._source:
                raise ProtocolError(
                    f"{fence.request_id} is offered on a GPU; accepted: a receiver that reads it there"
                )
            views = (
                (i, self._pool.block_bytes_view(p)) for i, p in zip(request.indexes, places, strict=True)
            )
            # A write waits for the receiver's window, so only one piece is held at a time.
            for index, offset_bytes, data in cut_pieces(views):
                handoff.locate(fence, ())  # the fence may have broken during the last write
                await context.write(pb.FetchResponse(index=index, offset_bytes=offset_bytes, data=data))
        except KVTransferError as error:
            await _refuse(context, error)

    async def Acknowledge(
        self,
        request: pb.AcknowledgeRequest,
        context: grpc.aio.ServicerContext[pb.AcknowledgeRequest, pb.AcknowledgeResponse],
    ) -> pb.AcknowledgeResponse:
        try:
            self._handoffs.acknowledge(fence_from_pb(request.fence), request.num_corrupt_blocks)
        except KVTransferError as error:
            await _refuse(context, error)
        return pb.AcknowledgeResponse()

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse]
    ) -> pb.AbortResponse:
        try:
            self._handoffs.give_up(fence_from_pb(request.fence), request.reason or "aborted by the receiver")
        except KVTransferError as error:
            await _refuse(context, error)
        return pb.AbortResponse()

    async def _lend(self, fence: Fence, borrowing: pb.Borrowing) -> None:
        if self._lending is None:
            raise ProtocolError("borrowing is set; accepted: by a worker that lends (--share-prefixes)")
        await self._lending.lend(fence, borrowing.block_hashes, borrowing.limit_ms / 1000)

    def _within(self, reach: pb.CudaReach) -> CudaPool | None:
        """Return the pool on this process's device if the receiver can map it."""
        cuda = self._cuda
        return cuda if cuda is not None and is_in_reach(cuda, reach_from_pb(reach)) else None

    def _manifest(self, opened: Sending, cuda: CudaPool | None) -> Manifest:
        assert opened.source is not None, opened.handle
        return Manifest(
            num_blocks=opened.handoff.num_blocks,
            block_size=self._block_size,
            block_bytes=self._pool.block_bytes,
            checksum_kind=opened.source.checksum_kind,
            shm_socket=self._shm_socket,
            nixl=self._nixl,
            cuda_ipc=cuda,
        )


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: KVTransferError) -> Never:
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort returned")
