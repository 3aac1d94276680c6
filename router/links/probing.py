"""Probe a worker over UDP: is it alive, and how much of its stream has it written?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from baton.worker.v1.worker_pb2 import Probe, ProbeAck
from services.rpc.probe import seal, unseal


class Prober(asyncio.DatagramProtocol):
    """The probes of one stream. `on_ack` is called once for each response of the worker."""

    def __init__(self, address: str, on_ack: Callable[[ProbeAck], None]) -> None:
        self._address = address
        self._on_ack = on_ack
        self._stream = 0
        self._key = b""
        self._last_sent = self._last_acked = 0
        self._transport: asyncio.DatagramTransport | None = None

    def begin(self, stream: int, key: bytes) -> None:
        """Set the stream to probe, and the key from the worker's welcome."""
        self._stream, self._key = stream, key

    async def run(self) -> None:
        """Keep a socket open until cancelled. Without one no probe is sent."""
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, remote_addr=(host.strip("[]"), int(port))
            )
        except OSError as error:
            structlog.get_logger().warning("no_probes", address=self._address, reason=str(error))
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._transport.close()

    def send(self) -> None:
        """Send a probe, which may get lost."""
        if self._transport is not None and self._key and not self._transport.is_closing():
            self._last_sent += 1
            self._transport.sendto(seal(Probe(stream=self._stream, number=self._last_sent), self._key))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Take an ack, unless a later probe has been acknowledged already."""
        ack = unseal(data, ProbeAck, lambda _: self._key)
        if ack is None or ack.stream != self._stream or not self._last_acked < ack.number <= self._last_sent:
            return
        self._last_acked = ack.number
        self._on_ack(ack)

    def error_received(self, exc: Exception) -> None:
        """Ignore errors, such as a port where nothing listens: a missing response is enough."""
