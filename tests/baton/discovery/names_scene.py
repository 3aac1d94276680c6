"""Clients and routers in a network of their own, whose only DNS server is this program's.

Run by `test_names.py` under `unshare --map-root-user --mount --net`, with the name of a scene.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import cast

from baton import AsyncClient
from baton.types import Finished, Timeout, Tokens
from tests.baton.scripted_service import HANG, ScriptedRouter, accepted, ended, finished, tokens
from tests.fleet.driving import until

NAME = "routers.test"
ADDRESS = f"{NAME}:50051"
PATIENT = Timeout(connect_s=20.0)


class Dns(asyncio.DatagramProtocol):
    """Answers every question about A records with the addresses that a scene has set."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.num_asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        is_a = struct.unpack("!H", data[end - 4 : end - 2]) == (1,)
        found = self.addresses if is_a else []
        self.num_asked += is_a
        head = data[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0)
        records = b"".join(
            struct.pack("!HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address) for address in found
        )
        self._transport.sendto(head + data[12:end] + records, addr)


def isolate() -> None:
    """Bring up loopback, and name this program as the one DNS server."""
    with socket.socket() as any_socket:
        up = struct.pack("16sH14s", b"lo", 1, b"")
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS, IFF_UP
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("nameserver 127.0.0.1\noptions timeout:1 attempts:2\n")
    subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)


def router_at(address: str) -> ScriptedRouter:
    router = ScriptedRouter()
    router.listen = f"{address}:50051"
    return router


async def all_are_found_and_followed(dns: Dns) -> None:
    """Calls go to all routers behind a name, and later to those that it stands for by then."""
    dns.addresses = ["127.0.0.2", "127.0.0.3"]
    first, second, third = routers = [router_at(f"127.0.0.{number}") for number in (2, 3, 4)]
    async with first, second, third, AsyncClient(ADDRESS, timeout=PATIENT) as client:
        for _ in range(4):
            await client.complete("a")
        assert [len(router.calls("Generate")) for router in routers] == [2, 2, 0]
        dns.addresses = ["127.0.0.3", "127.0.0.4"]

        async def follows() -> bool:
            before = [len(router.calls("Generate")) for router in routers]
            await asyncio.gather(*(client.complete("a") for _ in range(2)))
            after = [len(router.calls("Generate")) for router in routers]
            return [now - was for now, was in zip(after, before, strict=True)] == [0, 1, 1]

        await until(follows, "calls go to the new routers alone")


async def a_replaced_router_is_found(dns: Dns) -> None:
    """The only router of a name is replaced at another address, between two calls and in a stream."""
    dns.addresses = ["127.0.0.2"]
    async with AsyncClient(ADDRESS, timeout=PATIENT) as client:
        async with router_at("127.0.0.2"):
            await client.complete("a")
        dns.addresses = ["127.0.0.3"]
        second = router_at("127.0.0.3")
        second.scripts = [(accepted(), tokens(0, 1), HANG)]
        async with second:
            received = []
            async for event in client.generate("a"):
                received += list(event.token_ids) if isinstance(event, Tokens) else []
                if received == [1]:
                    await second.stop()
                    dns.addresses = ["127.0.0.4"]
                    third = router_at("127.0.0.4")
                    third.scripts = [(tokens(1, 2), ended(2), finished())]
                    await third.__aenter__()
                if isinstance(event, Finished):
                    assert received == [1, 2]
        assert len(third.calls("Resume")) == 1
        await third.stop()


async def all_routers_are_replaced(dns: Dns) -> None:
    """Both routers of a name are gone at once; the name is looked up again, and DNS may fail meanwhile."""
    dns.addresses = ["127.0.0.2", "127.0.0.3"]
    async with AsyncClient(ADDRESS, timeout=PATIENT) as client:
        async with router_at("127.0.0.2"), router_at("127.0.0.3"):
            await client.complete("a")
        dns.addresses = []
        calling = asyncio.create_task(client.complete("a"))
        asked = dns.num_asked

        async def is_asked() -> bool:
            return dns.num_asked > asked

        await until(is_asked, "the name is looked up again")
        async with router_at("127.0.0.4") as third, router_at("127.0.0.5") as fourth:
            dns.addresses = ["127.0.0.4", "127.0.0.5"]
            await calling
            assert len(third.calls("Generate")) + len(fourth.calls("Generate")) == 1


SCENES: dict[str, Callable[[Dns], Awaitable[None]]] = {
    scene.__name__: scene
    for scene in (all_are_found_and_followed, a_replaced_router_is_found, all_routers_are_replaced)
}


async def play(name: str) -> None:
    dns = Dns()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: dns, local_addr=("127.0.0.1", 53)
    )
    async with asyncio.timeout(90):
        await SCENES[name](dns)
    transport.close()


if __name__ == "__main__":
    isolate()
    asyncio.run(play(sys.argv[1]))
