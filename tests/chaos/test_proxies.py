"""A link that breaks ends every call on it, as a connection that breaks does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from tests.chaos.proxies import MessageProxy
from tests.chaos.watch import Watch
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = pytest.mark.integration

METHOD = "/Peer/Talk"
NUM_CALLS = 10
APART = range(12)
"""Turns of the loop between two cuts."""

_Call = grpc.aio.StreamStreamCall[bytes, bytes]


async def talk(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    """Never ends."""
    async for request in requests:
        while True:
            yield request
            await asyncio.sleep(0.001)


@pytest.fixture
async def link() -> AsyncIterator[MessageProxy]:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(talk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Peer", {"Talk": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listen = f"127.0.0.1:{free_port()}"
    async with MessageProxy("router-0", listen, f"127.0.0.1:{port}", Watch()) as proxy:
        yield proxy
    await server.stop(0)


async def begun(channel: grpc.aio.Channel) -> _Call:
    """A call over which something comes."""
    call: _Call = channel.stream_stream(METHOD)()
    await call.write(b"hello")
    assert await call.read() == b"hello"
    return call


async def ended(call: _Call) -> grpc.StatusCode:
    """How, once all that came has been read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


@pytest.mark.parametrize("apart", APART)
async def test_two_cuts_at_nearly_the_same_time_end_every_call(link: MessageProxy, apart: int) -> None:
    async with grpc.aio.insecure_channel(link.address) as channel:
        calls = [await begun(channel) for _ in range(NUM_CALLS)]
        endings = [asyncio.create_task(ended(call)) for call in calls]
        link.cut()
        for _ in range(apart):
            await asyncio.sleep(0)
        link.cut()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*endings) == [grpc.StatusCode.UNAVAILABLE] * NUM_CALLS
