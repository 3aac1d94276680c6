"""A call that is given up ends at its peer, however it looks from here."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from runtime.rpc.calls import cancel
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration


class Peer:
    """Serves one call until that is cancelled."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def work(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        self.began.set()
        try:
            async for request in requests:
                yield request
        finally:
            self.ended.set()


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Peer, grpc.aio.StreamStreamCall[bytes, bytes]]]:
    peer, server = Peer(), grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(peer.work)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Peer", {"Work": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/Peer/Work")()
        await call.write(b"hello")
        assert await call.read() == b"hello"
        yield peer, call
    await server.stop(0)


async def test_a_call_that_runs_is_cancelled(
    peer: tuple[Peer, grpc.aio.StreamStreamCall[bytes, bytes]],
) -> None:
    served, call = peer
    cancel(call)
    async with asyncio.timeout(PATIENCE_S):
        await served.ended.wait()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_a_call_with_a_failed_write_is_cancelled(
    peer: tuple[Peer, grpc.aio.StreamStreamCall[bytes, bytes]],
) -> None:
    served, call = peer
    call._cython_call.set_internal_error("a write failed")  # type: ignore[attr-defined]  # as grpc.aio does
    assert call.done()
    before = asyncio.all_tasks()
    cancel(call)
    async with asyncio.timeout(PATIENCE_S):
        await served.ended.wait()
        while any("_handle_status_once_received" in repr(task) for task in before if not task.done()):
            await asyncio.sleep(0.01)


async def test_a_call_that_is_over_can_be_cancelled(
    peer: tuple[Peer, grpc.aio.StreamStreamCall[bytes, bytes]],
) -> None:
    served, call = peer
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    cancel(call)
    cancel(call)
    assert served.ended.is_set()
