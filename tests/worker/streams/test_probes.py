"""A worker answers its routers' probes from a thread, and nobody else's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest

from baton.worker.v1.worker_pb2 import Probe, ProbeAck
from runtime.rpc.listening import AddressUnusable
from runtime.rpc.probe import seal, unseal
from tests.ports import free_port
from tests.worker.client import WorkClient
from tests.worker.conftest import Pair
from worker.streams.probes import ProbeResponder


class Router:
    """Probes one address."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, int(port)))
        self.socket.settimeout(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, stream: int, number: int, key: bytes) -> None:
        self.socket.send(seal(Probe(stream=stream, number=number), key))

    def hear(self, key: bytes) -> ProbeAck | None:
        return unseal(self.socket.recv(1024), ProbeAck, lambda _: key)


@pytest.fixture
def responder() -> Iterator[tuple[ProbeResponder, str]]:
    port = free_port()
    started = ProbeResponder()
    started.start("127.0.0.1", port)
    yield started, f"127.0.0.1:{port}"
    started.stop()


def test_the_answer_says_how_far_the_stream_is_written(responder: tuple[ProbeResponder, str]) -> None:
    probes, address = responder
    stream = probes.open()
    assert [stream.advance() for _ in range(3)] == [1, 2, 3]
    with Router(address) as router:
        router.send(stream.number, 7, stream.key)
        ack = router.hear(stream.key)
    assert ack is not None
    assert (ack.stream, ack.number, ack.written) == (stream.number, 7, 3)
    assert 0 <= ack.unwritten_seconds < 60


def test_only_open_streams_and_their_own_keys_are_answered(responder: tuple[ProbeResponder, str]) -> None:
    probes, address = responder
    over, other, stream = probes.open(), probes.open(), probes.open()
    probes.close(over)
    with Router(address) as router:
        router.socket.send(b"noise")
        router.send(over.number, 1, over.key)
        router.send(stream.number, 2, other.key)
        router.send(stream.number + 1, 3, stream.key)
        router.send(stream.number, 4, stream.key)
        ack = router.hear(stream.key)
    assert ack is not None
    assert ack.number == 4, "datagrams of loopback stay in order"


def test_an_address_that_is_taken_is_said(responder: tuple[ProbeResponder, str]) -> None:
    _, address = responder
    with pytest.raises(AddressUnusable, match=f"--listen is {address}, which cannot be bound: UDP: "):
        ProbeResponder().start("127.0.0.1", int(address.rpartition(":")[2]))


def test_nothing_is_left_after_stop() -> None:
    port = free_port()
    responder = ProbeResponder()
    responder.start("127.0.0.1", port)
    responder.stop()
    assert "probes" not in {thread.name for thread in threading.enumerate()}
    again = ProbeResponder()
    again.start("127.0.0.1", port)
    again.stop()


@pytest.mark.integration
async def test_a_welcome_brings_what_a_probe_of_the_stream_needs(pair: Pair) -> None:
    address = pair.target.address
    async with WorkClient(address) as first, WorkClient(address) as second:
        assert first.welcome.stream != second.welcome.stream
        assert first.welcome.probe_key != second.welcome.probe_key
        with Router(address) as router:
            router.send(first.welcome.stream, 1, first.welcome.probe_key)
            ack = router.hear(first.welcome.probe_key)
        assert ack is not None
        assert ack.written >= 1, "the welcome"
