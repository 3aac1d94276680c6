"""Datagrams over the same link as messages: what closes or delays one does so to both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from tests.chaos.callers import Naming
from tests.chaos.links import Way

Forward = Callable[[Callable[[], None], str, Way], None]
"""Does what it is given when the link lets it through for this caller and way, or never."""


class DatagramProxy:
    """Forwards datagrams from `listen` to `target`, and the answers back, one port for each sender."""

    def __init__(self, listen: str, target: str, forward: Forward, naming: Naming) -> None:
        self._listen, self._target, self._forward = _split(listen), _split(target), forward
        self._naming = naming
        self._senders: dict[Any, asyncio.Future[asyncio.DatagramTransport]] = {}
        self._callers: dict[Any, str] = {}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._door, _ = await loop.create_datagram_endpoint(lambda: _Ear(self._take), local_addr=self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._door.close()
        opened = await asyncio.gather(*self._senders.values(), return_exceptions=True)
        for action in opened:
            if not isinstance(action, BaseException):
                action.close()

    def _take(self, data: bytes, sender: Any) -> None:
        if sender not in self._senders:
            self._callers[sender] = self._naming(sender[0], sender[1], "udp")
            self._senders[sender] = asyncio.ensure_future(self._connect(sender))
        caller = self._callers[sender]

        def send(opened: asyncio.Future[asyncio.DatagramTransport]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                self._forward(lambda: opened.result().sendto(data), caller, Way.THERE)

        self._senders[sender].add_done_callback(send)

    async def _connect(self, sender: Any) -> asyncio.DatagramTransport:
        caller = self._callers[sender]

        def answer(data: bytes, _: Any) -> None:
            self._forward(lambda: self._door.sendto(data, sender), caller, Way.BACK)

        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Ear(answer), remote_addr=self._target)
        return transport


class _Ear(asyncio.DatagramProtocol):
    def __init__(self, heard: Callable[[bytes, Any], None]) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._heard(data, addr)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
