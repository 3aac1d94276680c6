"""Blocks of a process anywhere, by its Fetch RPC, in pieces that spare the interpreter lock and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc

from baton.worker.v1 import kvtransfer_pb2 as pb
from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from kvtransfer.errors import KVTransferError, PeerLostError, ProtocolError, TransportUnavailableError
from kvtransfer.pools.pool import BlockPool
from kvtransfer.receiver_handoff import BlockCopy
from runtime.rpc.convert import fence_to_pb
from scheduling.request import Fence

PIECE_BYTES = 256 * 1024
"""Parsing a message holds the interpreter lock: larger ones would delay the step thread."""


class GrpcReader:
    """Writes the pieces of a Fetch into the pool as they come, without a buffer in between."""

    transport = "grpc"

    def __init__(
        self,
        pool: BlockPool,
        stub: pb_grpc.KVTransferServiceAsyncStub,
        address: str,
        on_lost: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._stub = stub
        self._address = address
        self._on_lost = on_lost

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        writer = PieceWriter(self._pool, copies)
        request = pb.FetchRequest(fence=fence_to_pb(fence), indexes=[copy.index for copy in copies])
        try:
            async for piece in self._stub.Fetch(request):
                writer.write(piece.index, piece.offset_bytes, piece.data)
        except grpc.aio.AioRpcError as error:
            raise self._error_of(error) from error
        writer.check_complete()

    async def close(self) -> None:
        """Do nothing: the channel belongs to the peer that made the stub."""

    def _error_of(self, error: grpc.aio.AioRpcError) -> KVTransferError:
        details = error.details() or error.code().name
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._on_lost()
            return PeerLostError(self._address, details)
        return TransportUnavailableError("grpc", self._address, details)


class PieceWriter:
    """Writes pieces to their blocks; they must come in order and complete."""

    def __init__(self, pool: BlockPool, copies: Sequence[BlockCopy]) -> None:
        self._pool = pool
        self._copies = copies
        self._next = 0
        self._offset = 0

    def write(self, index: int, offset_bytes: int, data: bytes) -> None:
        """Write a piece that starts in block `index` at `offset_bytes` and may go on in the next ones."""
        if self._next == len(self._copies):
            raise ProtocolError(f"a piece of block {index} came after the last one")
        expected = (self._copies[self._next].index, self._offset)
        if (index, offset_bytes) != expected:
            raise ProtocolError(f"a piece of block {index} at {offset_bytes} came; expected: {expected}")
        rest = memoryview(data)
        while rest:
            rest = rest[self._write_into_block(rest) :]

    def check_complete(self) -> None:
        if self._next < len(self._copies):
            raise ProtocolError(
                f"the fetch ended in block {self._copies[self._next].index} at {self._offset}"
            )

    def _write_into_block(self, data: memoryview) -> int:
        if self._next == len(self._copies):
            raise ProtocolError(f"{len(data)} bytes came after the last block")
        target = self._pool.block_bytes_view(self._copies[self._next].target_block)
        size = min(len(data), len(target) - self._offset)
        target[self._offset : self._offset + size] = data[:size]
        self._offset += size
        if self._offset == len(target):
            self._next, self._offset = self._next + 1, 0
        return size


def cut_pieces(
    blocks: Iterable[tuple[int, memoryview]], piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[int, int, bytes]]:
    """Yield (index, offset, data) of blocks back to back; each piece but the last has `piece_bytes`.

    A block is read when its first piece is requested.
    """
    slices: list[memoryview] = []
    start: tuple[int, int] | None = None
    room = piece_bytes
    for index, view in blocks:
        offset = 0
        while offset < len(view):
            start = start or (index, offset)
            slices.append(view[offset : offset + room])
            offset += len(slices[-1])
            room -= len(slices[-1])
            if room == 0:
                yield (*start, b"".join(slices))
                slices, start, room = [], None, piece_bytes
    if start is not None:
        yield (*start, b"".join(slices))
