"""The endpoint picker relays responses that would be lost without it, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc.aio
import pytest
import pytest_asyncio

from baton.picker.v1 import ext_proc_pb2 as pb
from gateway.picker.convert import FULL_DUPLEX
from tests.baton.scripted_service import ScriptedRouter
from tests.fleet.driving import until
from tests.gateway.picker.asking import DUPLEX, MODEL, Asking, endpoint_of, exchange, head, piece, serves
from tests.gateway.picker.running import Picker, running_picker
from tests.gateway.running import running_gateway

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

STREAMED, BUFFERED = pb.BODY_MODE_STREAMED, pb.BODY_MODE_BUFFERED
HEADERS = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
TRAILERS = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
BODY_LIMIT = 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking() -> AsyncIterator[Asking]:
    async with ScriptedRouter(ListModels=MODEL) as router, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway([router.address]))
        served = gateway.url.removeprefix("http://")
        flags = ("--max-body-bytes", str(BODY_LIMIT))
        picker = await stack.enter_async_context(running_picker([served], [router.address], *flags))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(picker.address))
        await until(lambda: serves(channel), "the picker is ready")
        yield Asking(router, (served,), channel)


def returned(body: bytes, *, ends: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=body, end_of_stream=ends))


def streamed(response: pb.ProcessingResponse) -> tuple[bytes, bool]:
    """Return the piece that the proxy sends on to the caller, and whether it is the last."""
    assert response.WhichOneof("response") == "response_body"
    part = response.response_body.response.body_mutation.streamed_response
    return part.body, part.end_of_stream


@pytest.mark.parametrize("config", [DUPLEX, None], ids=["full duplex", "not said"])
async def test_a_relayed_response_stays_as_it_is(
    asking: Asking, config: pb.ProtocolConfiguration | None
) -> None:
    parts = [head(method="GET", config=config), HEADERS, returned(b"data: 1\n\n"), returned(b"", ends=True)]
    call = asking.call()
    picked, headers, *body = [await exchange(call, part) for part in parts]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert endpoint_of(picked) == asking.gateways[0]
    assert headers.WhichOneof("response") == "response_headers"
    assert [streamed(part) for part in body] == [(b"data: 1\n\n", False), (b"", True)]


async def test_large_pieces_and_trailers_are_relayed(asking: Asking) -> None:
    body = bytes(range(256)) * 500
    _, _, *pieces, last = await asking.ask(head(method="GET"), HEADERS, returned(body), TRAILERS)
    assert b"".join(part for part, _ in map(streamed, pieces)) == body
    assert not any(is_last for _, is_last in map(streamed, pieces))
    assert last.WhichOneof("response") == "response_trailers"


async def test_a_picker_that_is_told_to_leave_relays_to_the_end(asking: Asking) -> None:
    async with (
        running_picker(asking.gateways, [asking.router.address]) as picker,
        grpc.aio.insecure_channel(picker.address) as channel,
    ):
        await until(lambda: serves(channel), "the picker is ready")
        call = Asking(asking.router, asking.gateways, channel).call()
        assert endpoint_of(await exchange(call, head(method="GET"))) == asking.gateways[0]
        picker.process.terminate()
        await until(lambda: left(picker), "the picker serves no others")
        assert streamed(await exchange(call, returned(b"data: 1\n\n"))) == (b"data: 1\n\n", False)
        assert streamed(await exchange(call, returned(b"", ends=True))) == (b"", True)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await asyncio.to_thread(picker.process.wait) == 0


async def left(picker: Picker) -> bool:
    """Return whether the picker's port is closed to new connections."""
    host, _, port = picker.address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # The port was closed while this connection was being made.
        return False
    writer.close()
    return False


@pytest.mark.parametrize("response_mode", [pb.BODY_MODE_UNSPECIFIED, STREAMED, BUFFERED])
@pytest.mark.parametrize(("request_mode", "answer"), [(FULL_DUPLEX, 0), (BUFFERED, 1)])
async def test_the_picker_ends_the_stream_where_it_does_not_relay(
    asking: Asking, request_mode: pb.BodyMode, answer: int, response_mode: pb.BodyMode
) -> None:
    config = pb.ProtocolConfiguration(request_body_mode=request_mode, response_body_mode=response_mode)
    responses = await asking.ask(head(config=config), piece(b"{}", ends=True), leaves=False)
    assert len(responses) == 2
    assert endpoint_of(responses[answer]) == asking.gateways[0]


async def test_the_picker_ends_the_stream_with_a_response_of_its_own(asking: Asking) -> None:
    [response] = await asking.ask(head(method="GET", subset=[]), leaves=False)
    assert response.immediate_response.status.code == 503


async def test_a_body_that_is_not_waited_for_goes_on_unchanged(asking: Asking) -> None:
    config = pb.ProtocolConfiguration(request_body_mode=STREAMED, response_body_mode=FULL_DUPLEX)
    picked, body, _, answer = await asking.ask(
        head(config=config), piece(b"{}", ends=True), HEADERS, returned(b"no", ends=True)
    )
    assert endpoint_of(picked) == asking.gateways[0]
    assert body == pb.ProcessingResponse(request_body=pb.BodyResponse())
    assert streamed(answer) == (b"no", True)


@pytest.mark.parametrize("response_mode", [STREAMED, FULL_DUPLEX])
async def test_a_gateway_may_respond_before_the_body_has_come(
    asking: Asking, response_mode: pb.BodyMode
) -> None:
    config = pb.ProtocolConfiguration(request_body_mode=FULL_DUPLEX, response_body_mode=response_mode)
    large = piece(b"x" * (BODY_LIMIT + 1))
    responses = await asking.ask(
        head(config=config), large, HEADERS, returned(b"no", ends=True), piece(b"x", ends=True)
    )
    kinds = [response.WhichOneof("response") for response in responses]
    assert kinds == ["request_headers", "request_body", "response_headers", "response_body", "request_body"]
    if response_mode == FULL_DUPLEX:
        assert streamed(responses[3]) == (b"no", True)
    else:
        assert responses[3] == pb.ProcessingResponse(response_body=pb.BodyResponse())
