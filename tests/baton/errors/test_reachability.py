"""A client at a port that it cannot use is told why: real servers, with and without TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from baton import Client, Credentials
from baton.cli.program import main
from baton.errors import Unavailable, reachability
from baton.errors.reachability import Obstacle, explained, probe
from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates
from baton.types import Timeout

UNENCRYPTED = Credentials()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("own"), (), 1, dt.datetime.now(dt.UTC))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("foreign"), (), 1, dt.datetime.now(dt.UTC))


def shown(made: Certificates) -> Credentials:
    return Credentials(made.ca, made.cert("client"), made.key("client"))


@contextlib.contextmanager
def grpc_server(host: str, made: Certificates | None, *, mutual: bool = False) -> Iterator[str]:
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        if made is None:
            port = server.add_insecure_port(f"{host}:0")
        else:
            pair = (made.key("router").read_bytes(), made.cert("router").read_bytes())
            trusted = made.ca.read_bytes() if mutual else None
            door = grpc.ssl_server_credentials([pair], trusted, require_client_auth=mutual)
            port = server.add_secure_port(f"{host}:0", door)
        server.start()
        try:
            yield f"{host}:{port}"
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def raw_server(answer: bytes | None) -> Iterator[str]:
    """It sends `answer` to whatever comes, and hangs up; without one it stays silent."""
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                kept.append(connection)
                if answer is not None:
                    with contextlib.suppress(OSError):  # the client has gone
                        connection.recv(65536)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)

    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for entry in kept:
                entry.close()


def obstacle(address: str, credentials: Credentials) -> Obstacle | None:
    found = probe(address, credentials)
    return None if found is None else found.obstacle


def test_tls_on_one_side_only_is_found_from_either_side(made: Certificates) -> None:
    for mutual in (False, True):
        with grpc_server("127.0.0.1", made, mutual=mutual) as address:
            assert obstacle(address, UNENCRYPTED) is Obstacle.SPEAKS_TLS
    with grpc_server("127.0.0.1", None) as address:
        assert obstacle(address, shown(made)) is Obstacle.SPEAKS_NO_TLS


def test_where_both_sides_fit_nothing_is_found(made: Certificates) -> None:
    with grpc_server("127.0.0.1", None) as address:
        assert probe(address, UNENCRYPTED) is None
    with grpc_server("127.0.0.1", made, mutual=True) as address:
        assert probe(address, shown(made)) is None
    with grpc_server("127.0.0.1", made) as address:
        assert probe(address, Credentials(made.ca)) is None


def test_certificates_that_do_not_fit_are_told_apart(made: Certificates, foreign: Certificates) -> None:
    with grpc_server("127.0.0.1", made, mutual=True) as address:
        assert obstacle(address, shown(foreign)) is Obstacle.UNTRUSTED
        assert obstacle(address, Credentials(made.ca)) is Obstacle.HANGS_UP
        strange = dataclasses.replace(shown(foreign), ca=made.ca)
        assert obstacle(address, strange) is Obstacle.HANGS_UP
    with grpc_server("127.0.0.2", made, mutual=True) as address:  # the certificate is for 127.0.0.1
        assert obstacle(address, shown(made)) is Obstacle.WRONG_HOST


def test_another_protocol_is_no_grpc(made: Certificates) -> None:
    with raw_server(b"-ERR unknown command 'PRI'\r\n") as address:
        assert obstacle(address, UNENCRYPTED) is Obstacle.NO_GRPC
        assert obstacle(address, shown(made)) is Obstacle.NO_GRPC


def test_silence_and_absence_are_no_finding(made: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    for credentials in (UNENCRYPTED, shown(made)):
        assert probe(address, credentials) is None
        assert probe("unix:/nowhere", credentials) is None
        with raw_server(None) as silent:
            assert probe(silent, credentials) is None
        with raw_server(b"") as hanging_up:
            assert probe(hanging_up, credentials) is None


def test_the_sdk_says_what_was_found_in_place_of_a_broken_connection(made: Certificates) -> None:
    quick = Timeout(connect_s=0.1)
    with grpc_server("127.0.0.1", made, mutual=True) as address, Client(address, timeout=quick) as client:
        for call in (client.models, lambda: client.complete("x"), lambda: next(client.watch())):
            with pytest.raises(Unavailable, match="speaks TLS: give Credentials") as caught:
                call()
            assert isinstance(caught.value.__cause__, Unavailable)
        with pytest.raises(Unavailable, match="speaks TLS"):
            client.cancel("x")
    with (
        grpc_server("127.0.0.1", None) as address,
        Client(address, credentials=shown(made), timeout=quick) as client,
        pytest.raises(Unavailable, match="does not speak TLS: leave out"),
    ):
        client.models()


def test_commands_say_which_flag_is_wrong(
    made: Certificates, foreign: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> str:
        assert main(command) == 3
        printed = capsys.readouterr()
        return printed.err + printed.out

    quick = ("--connect-s", "0.1")
    with grpc_server("127.0.0.1", made, mutual=True) as address:
        expected = f"{address} speaks TLS: name the fleet's CA with --ca"
        assert expected in said("quote", "hi", "--address", address, *quick)
        assert expected in said("health", address)
        wrong = said("quote", "hi", "--address", address, "--ca", str(foreign.ca), *quick)
        assert f"{address} shows a certificate that does not verify (" in wrong
    with grpc_server("127.0.0.1", None) as address:
        expected = f"{address} does not speak TLS: leave out --ca"
        assert expected in said("quote", "hi", "--address", address, "--ca", str(made.ca), *quick)
        assert expected in said("health", address, "--ca", str(made.ca))


async def test_a_machine_without_descriptors_keeps_the_unexplained_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_descriptors(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(reachability, "probe", without_descriptors)
    away = Unavailable("away", "127.0.0.1:1")
    assert await explained(away, credentials=UNENCRYPTED) is away
