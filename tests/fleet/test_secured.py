"""A fleet of `baton up --secure`: who holds the right file gets in, and nobody else, at every door."""

from __future__ import annotations

import datetime as dt
import re
import shlex
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import redis

from baton import Client, Credentials
from baton.errors import Unavailable
from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates
from baton.types import Stop, Timeout
from baton.worker.v1 import kvtransfer_pb2, kvtransfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.fleet.secured import Secured, secured_fleet
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration
IMPATIENT = Timeout(connect_s=0.2)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_fleet(tmp_path_factory.mktemp("secured")) as started:
        yield started


def channel(made: Certificates, part: str, address: str, name: str) -> grpc.Channel:
    pem = (made.ca.read_bytes(), made.key(part).read_bytes(), made.cert(part).read_bytes())
    options = [("grpc.ssl_target_name_override", name)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*pem), options=options)


def work(made: Certificates, part: str, address: str) -> grpc.StatusCode:
    """How a worker answers a Work stream of this part's."""
    with channel(made, part, address, "worker.baton.internal") as opened:
        stub = worker_pb2_grpc.WorkerServiceStub(opened)
        hello = worker_pb2.WorkRequest(number=1, hello=worker_pb2.Hello(router_id="intruder"))
        call = stub.Work(iter([hello]), timeout=PATIENCE_S)
        try:
            assert next(iter(call)).WhichOneof("report") == "welcome"
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def open_handoff(made: Certificates, part: str, address: str) -> grpc.StatusCode:
    with channel(made, part, address, "worker.baton.internal") as opened:
        call = kvtransfer_pb2_grpc.KVTransferServiceStub(opened).Open(
            kvtransfer_pb2.OpenRequest(), timeout=PATIENCE_S
        )
        try:
            next(iter(call))
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_it_prints_how_to_connect_and_serves_whoever_does(fleet: Secured) -> None:
    assert "this machine only, with TLS" in fleet.printed
    (printed,) = re.findall(r"^try +(.*)$", fleet.printed, flags=re.MULTILINE)
    arguments = shlex.split(printed.partition(" generate ")[2])
    assert arguments == ["The list is"], "the fleet that was started last is found, with its credentials"
    # By its folder, since other tests start fleets too.
    where = ["--run-dir", str(fleet.run_dir)]
    command = [sys.executable, "-m", "baton.cli", "generate", *where, *arguments, "--max-tokens", "4"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.strip()
    assert "handoff" in ran.stderr


@pytest.mark.parametrize("without", ["everything", "a certificate", "the right CA"])
def test_the_door_is_shut_to_a_client_without(fleet: Secured, tmp_path: Path, without: str) -> None:
    made, own = fleet.made, fleet.credentials
    if without == "everything":
        given = Credentials()
    elif without == "a certificate":
        given = Credentials(made.ca, api_key_file=own.api_key_file)
    else:
        foreign = make_certificates(tmp_path, (), 1, dt.datetime.now(dt.UTC))
        given = Credentials(foreign.ca, foreign.cert("client"), foreign.key("client"), own.api_key_file)
    with Client(fleet.router, credentials=given, timeout=IMPATIENT) as client, pytest.raises(Unavailable):
        client.models()


def test_only_a_router_opens_the_worker_protocol(fleet: Secured) -> None:
    for process in ("prefill-0", "decode-0"):
        address = fleet.address(process)
        assert work(fleet.made, "client", address) == grpc.StatusCode.PERMISSION_DENIED
        assert work(fleet.made, "worker", address) == grpc.StatusCode.PERMISSION_DENIED
        assert work(fleet.made, "router", address) == grpc.StatusCode.OK


def test_only_a_worker_opens_a_handoff(fleet: Secured) -> None:
    address = fleet.address("prefill-0")
    assert open_handoff(fleet.made, "client", address) == grpc.StatusCode.PERMISSION_DENIED
    assert open_handoff(fleet.made, "router", address) == grpc.StatusCode.PERMISSION_DENIED
    # Let in, and told that there is no such handoff.
    assert open_handoff(fleet.made, "worker", address) == grpc.StatusCode.FAILED_PRECONDITION


def test_a_certificate_of_another_ca_does_not_reach_a_worker(fleet: Secured, tmp_path: Path) -> None:
    foreign = make_certificates(tmp_path, (), 1, dt.datetime.now(dt.UTC))
    (tmp_path / "ca.pem").write_bytes(fleet.made.ca.read_bytes())  # it trusts the worker; not the other way
    assert work(foreign, "router", fleet.address("decode-0")) == grpc.StatusCode.UNAVAILABLE


def test_a_worker_is_not_taken_for_a_router_nor_a_router_for_a_worker(fleet: Secured) -> None:
    for address, name in (
        (fleet.address("decode-0"), "router.baton.internal"),
        (fleet.router, "worker.baton.internal"),
    ):
        with channel(fleet.made, "router", address, name) as opened, pytest.raises(grpc.RpcError) as caught:
            next(iter(worker_pb2_grpc.WorkerServiceStub(opened).Work(iter(()))))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_probes_get_an_answer_with_a_clients_certificate(fleet: Secured) -> None:
    made = fleet.made
    flags = ["--ca", made.ca, "--cert", made.cert("client"), "--key", made.key("client")]
    for address in (fleet.router, fleet.address("decode-0")):
        command = [sys.executable, "-m", "baton.cli", "health", address, *map(str, flags)]
        command += ["--timeout-s", f"{PATIENCE_S:g}"]
        assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_metrics_are_read_with_a_certificate_only(fleet: Secured) -> None:
    address = fleet.address("router-0", "metrics")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S)
    context = ssl.create_default_context(cafile=str(fleet.made.ca))
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(f"https://{address}/metrics", timeout=PATIENCE_S, context=context).read()
    context.load_cert_chain(fleet.made.cert("client"), fleet.made.key("client"))
    with urllib.request.urlopen(f"https://{address}/metrics", timeout=PATIENCE_S, context=context) as answer:
        assert b"baton" in answer.read()


def test_https_needs_a_key_for_all_but_health_checks(fleet: Secured) -> None:
    """The printed command works as it is, and only its key makes it so."""
    (printed,) = re.findall(r"^ +(curl .*)$", fleet.printed, flags=re.MULTILINE)
    _, _, ca, _, bearer, url, _, kind, _, body = shlex.split(printed)
    assert kind == "content-type: application/json"
    assert bearer == f"Authorization: Bearer $(cat {fleet.credentials.api_key_file})"
    context = ssl.create_default_context(cafile=ca)
    secret = (fleet.made.folder / "api.key").read_text().strip()
    with httpx.Client(verify=context, timeout=PATIENCE_S) as http:
        answer = http.post(url, content=body, headers={"authorization": f"Bearer {secret}"})
        assert answer.json()["usage"]["completion_tokens"] > 0
        assert http.post(url, content=body).status_code == 401
        name = answer.json()["model"]
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{name}"),
            ("POST", "/v1/embeddings"),
        ):
            wrong = {"authorization": "Bearer wrong"}
            assert http.request(method, urllib.parse.urljoin(url, path), headers=wrong).status_code == 401
        assert http.get(urllib.parse.urljoin(url, "/health")).status_code == 200
    with httpx.Client(timeout=PATIENCE_S) as stranger, pytest.raises(httpx.ConnectError, match="certificate"):
        stranger.get(url)


def test_a_large_body_is_read_from_callers_with_a_good_key_alone(fleet: Secured) -> None:
    """Only a head is sent, so a gateway that waits for the body says nothing."""
    host, _, port = fleet.address("gateway-0").rpartition(":")
    context = ssl.create_default_context(cafile=str(fleet.made.ca))
    good = (fleet.made.folder / "api.key").read_text().strip()

    def first_line(key: str, framing: str, body: bytes = b"") -> bytes:
        lines = ["POST /v1/completions HTTP/1.1", f"host: {host}", framing]
        lines += [f"authorization: Bearer {key}"] if key else []
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as asking,
        ):
            asking.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            return asking.recv(16)[9:12]

    large, chunked = "content-length: 3000000", "transfer-encoding: chunked"
    assert [first_line("wrong", framing) for framing in (large, chunked)] == [b"401", b"401"]
    assert [first_line("", framing) for framing in (large, chunked, "content-length: 9")] == [b"401"] * 3
    assert first_line(good, large, b" " * 3_000_000) == b"400"
    assert first_line(good, chunked, b"2\r\n{}\r\n0\r\n\r\n") == b"400"


def test_redis_asks_for_a_password_and_allows_only_what_is_needed(fleet: Secured) -> None:
    found = fleet.log("redis").split("ready to accept connections at ")[1].split()[0]
    assert Path(found).stat().st_mode & 0o777 == 0o600
    assert Path(found).parent.stat().st_mode & 0o777 == 0o700
    assert "redis   without TLS, on a unix socket that only you can open" in fleet.printed
    with redis.Redis(unix_socket_path=found) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    password = (fleet.made.folder / "redis.password").read_text()
    with redis.Redis(unix_socket_path=found, username="baton", password=password) as known:
        assert known.ping()
        for command in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("SET", "other", "1")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                known.execute_command(*command)


def test_only_this_user_can_ask_for_a_workers_memory(fleet: Secured) -> None:
    with fleet.client() as client:
        client.complete("The list is", stop=Stop(max_tokens=2))
    # The sender's socket; its folder is the user's own as well.
    folders = list(Path("/dev/shm").glob("baton-*"))
    sockets = [path for folder in folders if folder.is_dir() for path in folder.glob("*.sock")]
    assert sockets
    assert {path.stat().st_mode & 0o777 for path in sockets} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in sockets} == {0o700}
