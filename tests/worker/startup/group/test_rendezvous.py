"""Processes of a group find each other, and let in nobody else."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates
from engine.group.links import Kind
from engine.group.remote.sums import Connected, RemoteSums
from runtime.security.tls import TlsFiles
from tests.engine.group_driver import new_store
from tests.patience import PATIENCE_S
from tests.ports import free_port
from worker.place import Place, place_in
from worker.startup.group import rendezvous
from worker.startup.group.rendezvous import Use, connect


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("fleet"), (), 30, dt.datetime.now(dt.UTC))


def files(made: Certificates, part: str) -> TlsFiles:
    return TlsFiles(made.ca, made.cert(part), made.key(part))


def places() -> list[Place]:
    port = str(free_port())
    variables = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2", "MASTER_PORT": port}
    found = [place_in(variables | {"LWS_WORKER_INDEX": rank}) for rank in "01"]
    return [place for place in found if place is not None]


def knock(place: Place, greeting: bytes, tls: TlsFiles | None) -> None:
    """Connect to the leader as if this were a follower; return when the leader has hung up."""
    port = int(rendezvous._store(place).get(rendezvous._PORT))
    connection: socket.socket = socket.create_connection((place.address, port), PATIENCE_S)
    try:
        if tls is not None:
            context = rendezvous._context(tls, ssl.PROTOCOL_TLS_CLIENT)
            connection = context.wrap_socket(connection, server_hostname="worker.baton.internal")
        connection.sendall(greeting)
        assert connection.recv(1) == b""
    except TimeoutError:
        raise
    except OSError:  # the leader hangs up in the middle of what is sent or shown
        pass
    finally:
        connection.close()


@contextmanager
def connected(tls: TlsFiles | None, *strangers: tuple[bytes, TlsFiles | None]) -> Iterator[list[Connected]]:
    """Both processes of a group, once strangers have tried to be one of them."""
    leader, follower = places()
    with ThreadPoolExecutor(1) as threads:
        leading = threads.submit(connect, leader, tls)
        for greeting, certificate in strangers:
            knock(follower, greeting, certificate)
        ends = [connect(follower, tls), leading.result()][::-1]
    try:
        yield ends
    finally:
        for end in ends:
            for link in end.links:
                link.close()


def assert_joined(leader: Connected, follower: Connected) -> None:
    (names,), (is_named,) = leader.loads, follower.loads
    names.send(Kind.LOAD, [b"adapter"])  # before a step, and on a connection of its own
    (to_follower,), (to_leader,) = leader.channels, follower.channels
    content = bytes(range(256)) * 100  # more than a TLS record
    to_follower.send(Kind.STEP, [content])
    received = to_leader.receive()
    assert received is not None
    assert (received.kind, received.content) == (Kind.STEP, content)
    to_leader.send(Kind.TENSOR, [b"kv"])
    answer = to_follower.receive()
    assert answer is not None
    assert answer.content == b"kv"
    load = is_named.receive()
    assert load is not None
    assert (load.kind, load.content) == (Kind.LOAD, b"adapter")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        parts = [torch.tensor([1.5, rank], dtype=dtype) for rank in (2.0, 4.0)]
        with ThreadPoolExecutor(2) as threads:
            ends = [RemoteSums(end, 8) for end in (leader, follower)]
            assert all(total.tolist() == [3.0, 6.0] for total in threads.map(RemoteSums.sum, ends, parts))
    to_leader.close()
    assert to_follower.receive() is None


def test_processes_find_each_other_and_strangers_are_left_out() -> None:
    strangers = [
        (b"GET / HTTP/1.1\r\n\r\n", None),
        (rendezvous._GREETING.pack(rendezvous._WORD, 2, Use.STEPS), None),  # there is no rank 2
        (rendezvous._GREETING.pack(rendezvous._WORD, 1, 2), None),  # there is no third use
    ]
    with connected(None, *strangers) as (leader, follower):
        assert_joined(leader, follower)


def test_with_certificates_only_workers_of_the_fleet_are_let_in(made: Certificates, tmp_path: Path) -> None:
    greeting = rendezvous._GREETING.pack(rendezvous._WORD, 1, Use.STEPS)
    foreign = make_certificates(tmp_path, (), 30, dt.datetime.now(dt.UTC))
    of_another_ca = TlsFiles(made.ca, foreign.cert("worker"), foreign.key("worker"))
    strangers = [(greeting, None), (greeting, files(made, "router")), (greeting, of_another_ca)]
    with connected(files(made, "worker"), *strangers) as (leader, follower):
        assert all(isinstance(link.socket, ssl.SSLSocket) for link in leader.links)
        assert_joined(leader, follower)


def test_a_follower_looks_again_where_an_earlier_leader_was() -> None:
    """Processes that are started again find the store that the ones before them have used."""
    (leader, follower), store, until = places(), new_store(), time.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(1) as threads, closing(socket.create_server(("127.0.0.1", 0))) as earlier:
        store.set(rendezvous._PORT, str(earlier.getsockname()[1]))
        following = threads.submit(rendezvous._leader, follower, store, None, until)
        connection, _ = earlier.accept()
        connection.close()
        [to_follower], [of_loads] = rendezvous._followers(leader, "0123456789abcdef", store, None, until)
        name, to_leader, own_loads = following.result()
    assert name == "0123456789abcdef"
    to_follower.send(Kind.END, [])
    assert to_leader.receive() is not None
    for link in (to_follower, to_leader, of_loads, own_loads):
        link.close()
