"""Metrics are there for whoever asks, whoever else does not."""

from __future__ import annotations

import datetime as dt
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge

from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates
from runtime.rpc import listening
from runtime.rpc.listening import NUM_SCRAPES, MetricsServer
from runtime.security.settings import Security
from runtime.security.tls import TlsFiles
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("fleet"), (), 30, dt.datetime.now(dt.UTC))


@pytest.fixture(params=["clear", "tls"])
def served(request: pytest.FixtureRequest, made: Certificates) -> Iterator[tuple[MetricsServer, Security]]:
    files = TlsFiles(made.ca, made.cert("worker"), made.key("worker"))
    security = Security(files if request.param == "tls" else None)
    registry = CollectorRegistry()
    Gauge("answer", "The answer", registry=registry).set(42)
    server = MetricsServer("127.0.0.1", 0, registry, security)
    yield server, security
    server.stop()


def scraped(address: str, security: Security, timeout_s: float = PATIENCE_S) -> str:
    """Return what the server says; raise if it does not answer."""
    if security.tls is None:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    else:
        context = ssl.create_default_context(cafile=security.tls.ca)
        context.load_cert_chain(security.tls.cert, security.tls.key)
        connection = http.client.HTTPSConnection(address, timeout=timeout_s, context=context)
    with closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def wait_for_answer(address: str, security: Security, timeout_s: float) -> None:
    """Ask until the server answers: a busy machine may be too slow for its limit once."""
    waits_until = time.monotonic() + PATIENCE_S
    while "answer 42.0" not in (said := tried(address, security, timeout_s)):
        assert time.monotonic() < waits_until, said


def tried(address: str, security: Security, timeout_s: float) -> str:
    """Return what the server says within a time, or why it says nothing."""
    try:
        return scraped(address, security, timeout_s)
    except OSError as error:
        return repr(error)


def test_who_connects_and_says_nothing_keeps_metrics_from_nobody(
    served: tuple[MetricsServer, Security], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "SCRAPE_S", 1.0)
    server, security = served
    host, _, port = server.address.rpartition(":")
    with ExitStack() as silent:
        for _ in range(3 * NUM_SCRAPES):
            silent.enter_context(socket.create_connection((host, int(port))))
        wait_for_answer(server.address, security, PATIENCE_S)


def test_who_speaks_for_ever_keeps_metrics_from_nobody(
    served: tuple[MetricsServer, Security], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then is no silence."""
    monkeypatch.setattr(listening, "SCRAPE_S", 0.3)
    server, security = served
    host, _, port = server.address.rpartition(":")
    over = threading.Event()

    def speak(one: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.05):
                one.sendall(b"x")

    with ExitStack() as stack:
        for _ in range(NUM_SCRAPES):
            one = stack.enter_context(socket.create_connection((host, int(port))))
            speaker = threading.Thread(target=speak, args=(one,))
            speaker.start()
            stack.callback(speaker.join)
        stack.callback(over.set)
        wait_for_answer(server.address, security, 0.5)


def test_no_thread_is_begun_for_a_scraper(served: tuple[MetricsServer, Security]) -> None:
    server, security = served
    before = set(threading.enumerate())
    seen: set[threading.Thread] = set()
    begin = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        seen.add(thread)
        begin(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", noted)
        assert "answer 42.0" in scraped(server.address, security)
    assert not seen
    assert set(threading.enumerate()) == before
