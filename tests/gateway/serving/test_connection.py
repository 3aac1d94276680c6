"""The bounds of one connection, over real sockets. A test makes a limit short if it waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import pytest_asyncio
import uvicorn

from gateway.serving import connection
from gateway.serving.connection import MAX_HEAD_BYTES, MAX_PIPELINED, Connection, Pool
from tests.patience import PATIENCE_S

MAX_CONNECTIONS, MAX_IDLE = 20, 4
POST = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n"


class App:
    """Reads a request's body and returns its length.

    `/wait` responds once the caller has left, `/held` sends its body once it may.
    """

    def __init__(self) -> None:
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.may_go_on = asyncio.Event()
        self.headers: list[list[tuple[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.put_nowait(scope["path"])
                return
            body, more = body + message["body"], message["more_body"]
        self.headers.append(scope["headers"])
        if scope["path"] == "/wait":
            await receive()
            self.left.put_nowait(scope["path"])
            return
        data = b"x" * (64 << 20) if scope["path"] == "/long" else str(len(body)).encode()
        length = (b"content-length", str(len(data)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        if scope["path"] == "/held":
            await self.may_go_on.wait()
        await send({"type": "http.response.body", "body": data})


@pytest_asyncio.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[App, uvicorn.Server, int]]:
    for name, seconds in (("READ_S", 3600), ("CLOSE_S", 0.3), ("_CHECK_S", 0.05)):
        monkeypatch.setattr(connection, name, seconds)
    app, listener = App(), socket.create_server(("127.0.0.1", 0))
    http = cast("type[asyncio.Protocol]", partial(Connection, pool=Pool(MAX_CONNECTIONS, MAX_IDLE)))
    config = uvicorn.Config(
        app, http=http, ws="none", lifespan="off", log_config=None, timeout_keep_alive=3600
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield app, server, listener.getsockname()[1]
    server.should_exit = True
    async with asyncio.timeout(PATIENCE_S):
        await serving


Served = tuple[App, uvicorn.Server, int]


@pytest.fixture
def impatient(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make short how long a request may take to arrive."""
    monkeypatch.setattr(connection, "READ_S", 0.3)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def error_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Return the status and body of the last response of a connection that the server closes."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def until_closed(server: uvicorn.Server) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while server.server_state.connections:
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_does_not_arrive_is_408(served: Served) -> None:
    async with connected(served[2]) as (reader, writer):
        writer.write(POST)
        status, body = await error_of(reader)
    assert (status, body["type"], body["error"]["type"]) == (408, "error", "timeout_error")
    await until_closed(served[1])


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_does_not_arrive_is_408_and_ends_its_request(served: Served) -> None:
    app, server, port = served
    async with connected(port) as (reader, writer):
        writer.write(POST.replace(b"/v1/messages", b"/v1/x") + b"content-length: 9\r\n\r\nabc")
        status, body = await error_of(reader)
        assert (status, body["error"]["code"]) == (408, "malformed_request")
        assert await app.left.get() == "/v1/x"
    await until_closed(server)


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_says_nothing_is_closed(served: Served) -> None:
    async with connected(served[2]) as (reader, _):
        assert await reader.read() == b""


async def test_empty_lines_do_not_keep_a_connection_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(served[2]) as (reader, writer):
        writer.write(POST + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n0")
        monkeypatch.setattr(connection, "READ_S", 0.3)
        writer.write(b"\r\n")
        assert await reader.read() == b""


async def test_an_endless_head_is_431(served: Served) -> None:
    async with connected(served[2]) as (reader, writer):
        writer.write(POST)
        for index in range(8 * MAX_HEAD_BYTES // 1000):
            writer.write(b"x-%d: %s\r\n" % (index, b"a" * 1000))
        assert (await error_of(reader))[0] == 431


async def test_a_head_that_contradicts_itself_is_400(served: Served) -> None:
    for lines in (
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"content-length: 3\r\ncontent-length: 4\r\n\r\n",
        b"content-length: -3\r\n\r\n",
        b"no colon\r\n\r\n",
    ):
        async with connected(served[2]) as (reader, writer):
            writer.write(POST + lines)
            status, body = await error_of(reader)
            assert (status, body["error"]["type"]) == (400, "invalid_request_error"), lines


async def test_pipelined_requests_are_served_in_order(served: Served) -> None:
    async with connected(served[2]) as (reader, writer):
        writer.write(b"".join(POST + b"content-length: %d\r\n\r\n%s" % (n, b"a" * n) for n in range(9)))
        found = b"".join([await reader.readuntil(b"\r\n\r\n%d" % n) for n in range(9)])
        assert found.count(b"200 OK") == 9


async def test_too_many_pipelined_requests_end_the_connection(served: Served) -> None:
    app, server, port = served
    async with connected(port) as (reader, writer):
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n" * (MAX_PIPELINED + 2))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert await app.left.get() == "/wait"
    await until_closed(server)


async def test_a_caller_who_leaves_is_noticed_with_requests_behind(served: Served) -> None:
    app, _, port = served
    async with connected(port) as (_, writer):
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        writer.write(b"GET /behind HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await app.left.get() == "/wait"


async def test_a_whole_response_that_nobody_reads_is_dropped(served: Served) -> None:
    _, server, port = served
    server.config.timeout_keep_alive = 1
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /long HTTP/1.1\r\n\r\n")
        await reader.readexactly(10)
        await until_closed(server)
        writer.close()


async def test_an_upgrade_is_not_taken_and_the_request_is_served(served: Served) -> None:
    async with connected(served[2]) as (reader, writer):
        writer.write(POST + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: a\r\n")
        writer.write(b"content-length: 3\r\n\r\nabc")
        assert (await reader.readuntil(b"\r\n\r\n3")).startswith(b"HTTP/1.1 200 OK")
        writer.write(POST + b"content-length: 4\r\n\r\nabcd")
        assert (await reader.readuntil(b"\r\n\r\n4")).startswith(b"HTTP/1.1 200 OK")


async def test_thousands_of_upgrades_in_one_packet_end_the_connection_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = b"GET /wait HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with connected(served[2]) as (reader, writer):
        writer.write(upgrade * 3000)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    async with connected(served[2]) as (reader, writer):
        depths: list[int] = []
        begin = Connection.on_message_begin

        def begun(self: Connection) -> None:
            depths.append(len(inspect.stack(0)))
            begin(self)

        monkeypatch.setattr(Connection, "on_message_begin", begun)
        writer.write(upgrade.replace(b"/wait", b"/") * 50)
        for _ in range(50):
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 OK")
    assert max(depths) == min(depths)


async def test_trailers_are_no_headers(served: Served) -> None:
    chunked = POST + b"transfer-encoding: chunked\r\nauthorization: Bearer a\r\n\r\n3\r\nabc\r\n"
    async with connected(served[2]) as (reader, writer):
        writer.write(chunked)
        await asyncio.sleep(0)
        writer.write(
            b"0\r\nauthorization: Bearer b\r\nx-other: 1\r\n\r\n" + POST + b"content-length: 0\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n3")
        await reader.readuntil(b"\r\n\r\n0")
    assert [dict(headers).get(b"authorization") for headers in served[0].headers] == [b"Bearer a", None]
    assert all(b"x-other" not in dict(headers) for headers in served[0].headers)


@pytest.mark.parametrize("trailer", [b"x-%d: %s\r\n", b"%d%s"], ids=["many", "one"])
async def test_endless_trailers_end_the_connection(served: Served, trailer: bytes) -> None:
    app, server, port = served
    async with connected(port) as (reader, writer):
        writer.write(
            POST.replace(b"/v1/messages", b"/v1/x") + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx:"
        )
        with contextlib.suppress(ConnectionError):
            for index in range(64 * MAX_HEAD_BYTES // 1000):
                writer.write(trailer % (index, b"a" * 1000))
                await writer.drain()
            assert (await error_of(reader))[0] == 431
    assert await app.left.get() == "/v1/x"
    await until_closed(server)


async def test_the_oldest_idle_connection_makes_room(served: Served) -> None:
    async with contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connected(served[2])) for _ in range(2)]
        for reader, writer in held:
            writer.write(b"GET /held HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        idle = [await stack.enter_async_context(connected(served[2])) for _ in range(MAX_IDLE + 1)]
        assert await idle[0][0].read() == b""
        served[0].may_go_on.set()
        for reader, _ in held:
            assert await reader.readexactly(1) == b"0"
        assert await idle[1][0].read() == b""


async def test_an_address_has_half_of_the_connections(served: Served) -> None:
    most = MAX_CONNECTIONS // 2
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(most):
            reader, writer = await stack.enter_async_context(connected(served[2]))
            writer.write(b"GET /held HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        async with connected(served[2]) as (reader, _):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert (head.split()[1], json.loads(body)["error"]["code"]) == (b"503", "too_many_connections")
            assert b"retry-after: 1" in head
        served[0].may_go_on.set()


async def until_leaving(server: uvicorn.Server, port: int) -> None:
    """Tell the server to leave, and wait until it takes no new connection."""
    server.should_exit = True
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return
            writer.transport.abort()


async def response_of(reader: asyncio.StreamReader) -> tuple[bool, bytes]:
    """Return whether a response announces the end of its connection, and its body of one byte."""
    head = await reader.readuntil(b"\r\n\r\n")
    return b"connection: close" in head, await reader.readexactly(1)


async def test_a_request_on_its_way_to_a_leaving_server_is_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAVE_S", 3600)
    asked = POST + b"content-length: 1\r\n\r\n"
    async with connected(served[2]) as (reader, writer):
        writer.write(asked + b"a")
        assert await response_of(reader) == (False, b"1")
        await until_leaving(served[1], served[2])
        writer.write(asked + b"a")
        assert await response_of(reader) == (True, b"1")
        assert await reader.read() == b""


async def test_half_a_request_to_a_leaving_server_may_be_completed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAVE_S", 0)
    asked = POST + b"content-length: 1\r\n\r\n"
    async with connected(served[2]) as (reader, writer):
        writer.write(asked + b"a" + asked[:9])
        assert await response_of(reader) == (False, b"1")
        await until_leaving(served[1], served[2])
        writer.write(asked[9:] + b"a")
        assert await response_of(reader) == (True, b"1")


async def test_a_response_that_has_begun_does_not_end_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAVE_S", 3600)
    app, server, port = served
    async with connected(port) as (reader, writer):
        writer.write(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await until_leaving(server, port)
        app.may_go_on.set()
        assert (b"connection: close" in head, await reader.readexactly(1)) == (False, b"0")
        writer.write(POST + b"content-length: 0\r\n\r\n")
        assert await response_of(reader) == (True, b"0")


async def test_a_leaving_server_closes_what_is_idle(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAVE_S", 0.1)
    async with connected(served[2]) as (reader, writer), connected(served[2]) as (silent, _):
        writer.write(POST + b"content-length: 0\r\n\r\n")
        assert await response_of(reader) == (False, b"0")
        await until_leaving(served[1], served[2])
        assert (await reader.read(), await silent.read()) == (b"", b"")


async def test_who_watches_a_server_learns_at_once_that_it_leaves(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAVE_S", 3600)
    async with connected(served[2]) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await response_of(reader) == (False, b"0")
        served[1].should_exit = True
        assert await reader.read() == b""
