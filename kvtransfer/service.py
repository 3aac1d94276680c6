"""KVTransferService: the receivers' door to the handoffs. Decisions are in `sender.py` and `handoff.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import grpc

from baton.v1 import kvtransfer_pb2 as pb
from baton.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.convert import event_to_pb
from kvtransfer.errors import (
    FenceBrokenError,
    KVTransferError,
    LayoutMismatchError,
    ProtocolError,
    UnknownFenceError,
)
from kvtransfer.handoff import SenderHandoff
from kvtransfer.manifest import FINISHED, ChecksumKind, Manifest, NixlPool
from kvtransfer.pool import BlockPool
from kvtransfer.sender import Handoffs
from kvtransfer.transports.grpc import cut_pieces
from services.convert import fence_from_pb


@dataclass(frozen=True, slots=True)
class SenderLayout:
    """What every manifest of this process says."""

    fingerprint: str
    block_size: int
    shm_socket: str = ""
    nixl: NixlPool | None = None


def status_of(error: KVTransferError) -> grpc.StatusCode:
    """Only NOT_FOUND is worth trying again; OUT_OF_RANGE says that the sequence ended before its handoff."""
    if isinstance(error, UnknownFenceError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, FenceBrokenError) and error.reason == FINISHED:
        return grpc.StatusCode.OUT_OF_RANGE
    if isinstance(error, ProtocolError):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.FAILED_PRECONDITION


class KVTransferService(pb_grpc.KVTransferServiceServicer):
    def __init__(self, handoffs: Handoffs, pool: BlockPool, layout: SenderLayout) -> None:
        self._handoffs = handoffs
        self._pool = pool
        self._layout = layout

    def add_to(self, server: grpc.aio.Server) -> str:
        """The service's full name, for reflection."""
        pb_grpc.add_KVTransferServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["KVTransferService"].full_name

    # Writing through the context, not yielding: then a call that breaks ends this coroutine at once.
    async def Open(  # type: ignore[override]
        self, request: pb.OpenRequest, context: grpc.aio.ServicerContext[pb.OpenRequest, pb.OpenResponse]
    ) -> None:
        fence = fence_from_pb(request.fence)
        try:
            if request.fingerprint != self._layout.fingerprint:
                raise LayoutMismatchError("fingerprint", request.fingerprint, self._layout.fingerprint)
            opened = self._handoffs.open(fence, request.num_held_blocks)
        except KVTransferError as error:
            await _refuse(context, error)
        said_all = False
        try:
            await context.write(event_to_pb(self._manifest(opened.handoff)))
            async for event in self._handoffs.events(opened):
                await context.write(event_to_pb(event))
            said_all = True
        finally:
            if not said_all:
                self._handoffs.give_up(fence, "the receiver's call broke")

    async def Fetch(  # type: ignore[override]
        self, request: pb.FetchRequest, context: grpc.aio.ServicerContext[pb.FetchRequest, pb.FetchResponse]
    ) -> None:
        fence = fence_from_pb(request.fence)
        try:
            handoff = self._handoffs.find(fence)
            places = handoff.locate(fence, request.indexes)
            views = (
                (i, self._pool.block_bytes_view(p)) for i, p in zip(request.indexes, places, strict=True)
            )
            # A write waits for the receiver's window, so one piece at a time is all that is held.
            for index, offset_bytes, data in cut_pieces(views):
                handoff.locate(fence, ())  # the fence may have broken while the last piece was under way
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

    def _manifest(self, handoff: SenderHandoff) -> Manifest:
        return Manifest(
            num_blocks=handoff.num_blocks,
            block_size=self._layout.block_size,
            block_bytes=self._pool.block_bytes,
            checksum_kind=ChecksumKind.XXH3_64,
            shm_socket=self._layout.shm_socket,
            nixl=self._layout.nixl,
        )


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: KVTransferError) -> Never:
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort returned")
