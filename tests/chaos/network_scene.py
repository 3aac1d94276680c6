"""Processes with networks of their own talk to this one, which has its own too (`test_network.py`)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.chaos.links import BOTH_WAYS, Way
from tests.chaos.network import CLIENT, HUB, Network
from tests.patience import PATIENCE_S

TALKS = """
import socket, sys
port = int(sys.argv[1])
tcp = socket.create_connection(("198.18.0.1", port))
tcp.settimeout(0.05)
udp = socket.socket(type=socket.SOCK_DGRAM)
while True:
    tcp.sendall(b"x")
    udp.sendto(b"x", ("198.18.0.1", port))
    try:
        print(len(tcp.recv(4096)), flush=True)
    except TimeoutError:
        pass
"""
"""Says something all the time, and prints how much it hears."""


class Hub(asyncio.DatagramProtocol):
    """Echoes, and counts what comes from each process, and what each process says that it hears."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.calls: Counter[str] = Counter()
        self.datagrams: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")
        name = self._network.name(host, port, "tcp")
        while data := await reader.read(4096):
            self.calls[name] += len(data)
            writer.write(data)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.datagrams[self._network.name(addr[0], addr[1], "udp")] += len(data)

    async def listen(self, name: str, talker: asyncio.subprocess.Process) -> None:
        assert talker.stdout is not None
        async for line in talker.stdout:
            self.heard[name] += int(line)


async def grows(counter: Counter[str], name: str) -> None:
    """Wait until more has come."""
    before = counter[name]
    async with asyncio.timeout(PATIENCE_S):
        while counter[name] == before:
            await asyncio.sleep(0.01)


async def stands(counter: Counter[str], name: str, beside: Callable[[], Awaitable[None]]) -> None:
    """Nothing more comes while something else goes on, once what was under way has come."""
    await asyncio.sleep(0.2)
    before = counter[name]
    for _ in range(3):
        await beside()
    assert counter[name] == before, f"{name} was heard"


async def scene() -> None:
    with Network(("decode-0", "decode-1")) as network:
        hub = Hub(network)
        server = await asyncio.start_server(hub.serve, HUB, 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: hub, local_addr=(HUB, port))
        talkers = {}
        for name in ("decode-0", "decode-1", CLIENT):
            talkers[name] = await asyncio.create_subprocess_exec(
                "nsenter", f"--net={network.path(name)}", sys.executable, "-c", TALKS, str(port),
                stdout=subprocess.PIPE,
            )  # fmt: skip
        listening = [asyncio.create_task(hub.listen(*talker)) for talker in talkers.items()]
        for name in talkers:
            await grows(hub.calls, name)
            await grows(hub.datagrams, name)
            await grows(hub.heard, name)
            network.block(name, port, BOTH_WAYS)
            others = [other for other in talkers if other != name]

            async def beside(others: list[str] = others) -> None:
                for other in others:
                    await grows(hub.heard, other)

            await stands(hub.calls, name, beside)
            await stands(hub.datagrams, name, beside)
            assert network.unblock(name, port) > 0
            await grows(hub.calls, name)
            network.block(name, port, (Way.BACK,))
            await stands(hub.heard, name, beside)
            await grows(hub.datagrams, name)
            assert network.unblock(name, port) > 0
            assert network.unblock(name, port) == 0, "nothing is blocked any more"
            await grows(hub.heard, name)
        for talker in talkers.values():
            talker.kill()
            await talker.wait()
        await asyncio.gather(*listening)
        server.close()


if __name__ == "__main__":
    asyncio.run(scene())
