"""A transport that has been closed is a lost connection, on the event loop that services run on."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from runtime.state.access import UNENCRYPTED
from runtime.state.connection import open_pool
from runtime.state.store import Store
from tests.redis_server import redis_server

pytestmark = pytest.mark.integration


def test_writing_to_a_closed_transport_is_a_lost_connection() -> None:
    with redis_server() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_write_to_a_closed_transport(server.url))


async def _write_to_a_closed_transport(url: str) -> None:
    await (await Store.connect(url)).close()  # it waits until the server responds
    pool = open_pool(url, UNENCRYPTED)
    connection = await pool.get_connection()
    await connection.send_command("PING")
    assert await connection.read_response() == b"PONG"
    transport = connection._writer.transport
    transport.abort()
    await asyncio.sleep(0)  # uvloop closes it in the next turn
    with pytest.raises(RuntimeError):
        transport.write(b"")
    with pytest.raises(RedisConnectionError):
        await connection.send_command("PING")
    await connection.connect()
    await connection.send_command("PING")
    assert await connection.read_response() == b"PONG"
    await pool.release(connection)
    await pool.aclose()
