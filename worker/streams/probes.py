"""Replies to routers' probes on a thread of its own, even while the event loop is busy.

The thread waits in the kernel and needs the interpreter for some microseconds for each probe. So a worker
that does not answer is dead, stopped or out of reach.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from threading import Thread

from baton.worker.v1.worker_pb2 import Probe, ProbeAck
from runtime.rpc.listening import AddressUnusable
from runtime.rpc.probe import KEY_BYTES, MAX_BYTES, seal, unseal


@dataclass(slots=True)
class ProbedStream:
    """Counts of a stream's messages. The event loop writes them; the responder's thread reads them."""

    number: int
    key: bytes = field(repr=False)
    written: int = 0
    taken: int = 0
    written_at: float = 0.0

    def advance(self) -> int:
        """Count the response that is about to be written; returns its number."""
        self.written += 1
        self.written_at = time.monotonic()
        return self.written


class ProbeResponder:
    """Replies to probes of open streams, from `start` to `stop`."""

    def __init__(self) -> None:
        self._streams: dict[int, ProbedStream] = {}
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._thread = Thread(target=self._reply, name="probes", daemon=True)
        self._stopping = False

    def open(self) -> ProbedStream:
        """Begin to reply for a new stream."""
        stream = ProbedStream(next(self._numbers), secrets.token_bytes(KEY_BYTES))
        self._streams[stream.number] = stream
        return stream

    def close(self, stream: ProbedStream) -> None:
        """Stop replying for a stream that is over."""
        self._streams.pop(stream.number, None)

    def start(self, host: str, port: int) -> None:
        """Listen at the address of the worker's services. Raises `AddressUnusable`."""
        self._socket = _bound(host, port)
        self._thread.start()

    def stop(self) -> None:
        """Return once the thread has ended."""
        if self._socket is None:
            return
        self._stopping = True
        with contextlib.suppress(OSError), socket.socket(self._socket.family, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _reply(self) -> None:
        assert self._socket is not None, "started"
        while not self._stopping:
            try:
                data, router = self._socket.recvfrom(MAX_BYTES)
                ack = self._ack_to(data)
                if ack:
                    self._socket.sendto(ack, router)
            except (OSError, MemoryError):  # the router asks again
                time.sleep(0.01)

    def _ack_to(self, data: bytes) -> bytes:
        """Return the ack, or nothing for a datagram that none of our routers has sent."""
        probe = unseal(data, Probe, self._key_of)
        stream = None if probe is None else self._streams.get(probe.stream)
        if probe is None or stream is None:
            return b""
        ack = ProbeAck(
            stream=probe.stream,
            number=probe.number,
            written=stream.written,
            unwritten_seconds=time.monotonic() - stream.written_at,
            taken=stream.taken,
        )
        return seal(ack, stream.key)

    def _key_of(self, probe: Probe) -> bytes:
        stream = self._streams.get(probe.stream)
        return b"" if stream is None else stream.key


def _bound(host: str, port: int) -> socket.socket:
    """Return a UDP socket at the first address of `host` that can be bound."""
    reason = "it is no address of this machine"
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    except OSError as error:
        found, reason = [], str(error)
    for family, kind, protocol, _, address in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.bind(address)
        except OSError as error:
            made.close()
            reason = os.strerror(error.errno or 0)
        else:
            return made
    accepted = "HOST:PORT whose port is free for TCP and for UDP"
    raise AddressUnusable("--listen", f"{host}:{port}", f"UDP: {reason}", accepted)
