"""A link holds up, loses and breaks what one caller has under way, and nothing of the others."""

from __future__ import annotations

import asyncio
import functools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc.aio
import pytest

from tests.chaos.callers import ByTheirSockets
from tests.chaos.links import Link, Way
from tests.chaos.proxies import MessageProxy
from tests.chaos.test_proxies import begun, ended, talk
from tests.chaos.watch import Watch
from tests.patience import PATIENCE_S
from tests.ports import free_port

CALLS = """
import socket, sys
host = sys.argv[3]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
tcp, udp = (socket.socket(family, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
tcp.connect((host, int(sys.argv[1])))
udp.sendto(b"asked", (host, int(sys.argv[2])))
print(tcp.getsockname()[1], udp.getsockname()[1], flush=True)
sys.stdin.read()
"""


async def is_through(link: Link, caller: str, way: Way) -> bool:
    passing = asyncio.create_task(link.passage(caller, way))
    await asyncio.sleep(0)
    is_done = passing.done()
    passing.cancel()
    return is_done


@pytest.mark.parametrize("ways", [(Way.THERE,), (Way.BACK,), tuple(Way)], ids=str)
async def test_only_what_one_caller_sends_or_hears_is_held_up(ways: tuple[Way, ...]) -> None:
    link = Link()
    link.freeze("router-0", ways)
    for way in Way:
        assert await is_through(link, "router-0", way) == (way not in ways)
        assert await is_through(link, "router-1", way)
    sent: list[Way] = []
    for way in Way:
        link.forward(functools.partial(sent.append, way), "router-0", way)
    async with asyncio.timeout(PATIENCE_S):
        while len(sent) < len(Way) - len(ways):
            await asyncio.sleep(0.001)
    assert set(sent) == set(Way) - set(ways), "datagrams are lost"
    assert link.heal("router-0") == 2 * len(ways), "messages and datagrams"
    assert link.heal("router-0") == 0
    for way in Way:
        assert await is_through(link, "router-0", way)


async def test_a_cut_breaks_the_calls_of_one_caller() -> None:
    link = Link()

    async def pump(caller: str) -> None:
        with link.pumping(caller):
            await asyncio.Event().wait()

    one, other = (asyncio.create_task(pump(name)) for name in ("router-0", "router-1"))
    await asyncio.sleep(0)
    assert link.cut("router-0") == 1
    await asyncio.wait([one], timeout=PATIENCE_S)
    assert one.cancelled()
    assert not other.done()
    assert link.cut() == 1
    await asyncio.wait([other], timeout=PATIENCE_S)
    assert other.cancelled()


@contextmanager
def listening() -> Iterator[tuple[int, int]]:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        for door in (tcp, udp):
            door.bind(("127.0.0.1", 0))
        tcp.listen()
        yield tcp.getsockname()[1], udp.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_a_caller_is_known_by_its_socket(host: str) -> None:
    """Its socket may be one of IPv6, as gRPC's are."""
    with (
        listening() as ports,
        subprocess.Popen(
            [sys.executable, "-c", CALLS, *map(str, ports), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as caller,
    ):
        assert caller.stdout is not None
        tcp, udp = map(int, caller.stdout.readline().split())
        naming = ByTheirSockets(lambda: {1: "another", caller.pid: "decode-0"})
        assert naming.name("127.0.0.1", tcp, "tcp") == "decode-0"
        assert naming.name("127.0.0.1", udp, "udp") == "decode-0"
        assert naming.name("127.0.0.1", ports[0], "tcp") == "", "the listener is none of these"
        assert caller.stdin is not None
        caller.stdin.close()


@pytest.fixture
async def target() -> AsyncIterator[str]:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(talk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Peer", {"Talk": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.integration
async def test_a_proxy_tells_its_callers_apart(target: str) -> None:
    """Here by their order, since both are in this process."""
    ports: dict[int, str] = {}

    def naming(_host: str, port: int, _protocol: str) -> str:
        return ports.setdefault(port, f"router-{len(ports)}")

    listen = f"127.0.0.1:{free_port()}"
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        MessageProxy("decode-0", listen, target, Watch(), naming) as proxy,
        grpc.aio.insecure_channel(listen, options=own) as first,
        grpc.aio.insecure_channel(listen, options=own) as second,
        asyncio.timeout(PATIENCE_S),
    ):
        calls = [await begun(channel) for channel in (first, second)]
        assert proxy.cut("router-0") == 1
        assert await ended(calls[0]) is grpc.StatusCode.UNAVAILABLE
        assert await calls[1].read() == b"hello"
