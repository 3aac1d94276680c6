"""Each limit of the public door refuses what is beyond it, clearly, and goes on serving the others."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.v1 import inference_pb2, inference_pb2_grpc
from router import limits
from router.config import parse_config
from router.limits import Limits
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT

pytestmark = pytest.mark.integration

LIMITS = {
    "message-bytes": 20_000,
    "metadata-bytes": 4096,
    "streams": 4,
    "connections": 6,
    "prompt-bytes": 1000,
    "prompt-tokens": 50,
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, ENHANCE_YOUR_CALM = 4, 6, 7, 11


@pytest.fixture(scope="module")
def address(redis_url: str, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A router without workers: what is refused at the door never needs one."""
    flags = [f"--max-{name}={number}" for name, number in LIMITS.items()] + ["--handshake-s=5"]
    command = [sys.executable, "-m", "router", "--listen=127.0.0.1:0", f"--redis={redis_url}"]
    log = tmp_path_factory.mktemp("limits") / "router.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, f"--model={model_path}", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors
        )
    with process:
        assert process.stdout is not None
        found = re.search(rb"address=(\S+)", process.stdout.readline())
        assert found is not None, log.read_text()
        yield found[1].decode()
        process.terminate()


def count(address: str, text: str, **metadata: str) -> int:
    """Tokens of a text, over a connection of its own."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.CountTokensRequest(text=text)
        return stub.CountTokens(request, metadata=tuple(metadata.items()), timeout=PATIENCE_S).count


def refusal(address: str, text: str, **metadata: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        count(address, text, **metadata)
    assert "w7 w8" not in (caught.value.details() or "")
    return caught.value.code(), caught.value.details() or ""


def test_what_is_within_all_limits_is_served(address: str) -> None:
    assert count(address, "w7 " * 20, note="x" * 2000) > 0


def test_a_message_that_is_too_large_is_refused(address: str) -> None:
    code, why = refusal(address, "w7 w8 " * 5000)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "20000" in why


def test_a_prompt_of_too_many_bytes_is_refused_before_it_is_tokenised(address: str) -> None:
    code, why = refusal(address, "w7 w8 " * 200)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert why == "text is 1200 bytes; accepted: up to 1000 bytes"


def test_a_prompt_of_too_many_tokens_is_refused(address: str) -> None:
    code, why = refusal(address, "w7 w8 " * 60)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "accepted: up to 50 tokens" in why


def test_too_much_metadata_is_refused(address: str) -> None:
    code, why = refusal(address, "w7", note="x" * 8000)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "metadata" in why


def test_more_streams_than_a_connection_may_hold_wait_until_one_ends(address: str) -> None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = fleet_pb2_grpc.FleetServiceStub(channel)
        watches = [stub.Watch(fleet_pb2.WatchRequest()) for _ in range(LIMITS["streams"])]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Describe(fleet_pb2.DescribeRequest(), timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert count(address, "w7") > 0, "another connection is not held up"
        watches[0].cancel()
        stub.Describe(fleet_pb2.DescribeRequest(), timeout=PATIENCE_S)
        for watch in watches:
            watch.cancel()


def test_pings_without_end_end_the_connection(address: str) -> None:
    with connected(address) as raw:
        raw.sendall(PREFACE + frame(SETTINGS, b""))
        # It may hang up while we still send.
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                raw.sendall(frame(PING, b"12345678"))
        found = frames(raw)
    assert GOAWAY in found
    assert struct.unpack(">II", found[GOAWAY][:8])[1] == ENHANCE_YOUR_CALM
    assert found[GOAWAY][8:] == b"too_many_pings"


def test_pings_at_the_stated_interval_are_taken_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_PING_INTERVAL_MS", 50)
    server = grpc.server(ThreadPoolExecutor(1), options=Limits().server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connected(f"127.0.0.1:{port}") as raw:
            raw.sendall(PREFACE + frame(SETTINGS, b""))
            for _ in range(6):
                time.sleep(0.25)
                raw.sendall(frame(PING, b"12345678"))
            raw.shutdown(socket.SHUT_WR)
            found = frames(raw)
        assert PING in found
        assert found.get(GOAWAY, b"")[8:] != b"too_many_pings"
    finally:
        server.stop(None)


def test_connections_beyond_the_limit_are_closed_and_room_comes_back(address: str) -> None:
    with contextlib.ExitStack() as held:
        crowd = [held.enter_context(connected(address)) for _ in range(LIMITS["connections"] + 2)]
        for raw in crowd:
            with contextlib.suppress(ConnectionError):
                raw.sendall(PREFACE + frame(SETTINGS, b""))
        served = sum(SETTINGS in first_frame(raw) for raw in crowd)
        assert 0 < served <= LIMITS["connections"]
    deadline = time.monotonic() + PATIENCE_S
    while True:  # they are let go of once it has noticed
        try:
            assert count(address, "w7") > 0
        except grpc.RpcError:
            assert time.monotonic() < deadline
        else:
            return


def test_who_connects_and_says_nothing_is_let_go(address: str) -> None:
    with connected(address) as raw:
        # It says its settings, waits for ours, and hangs up.
        while raw.recv(4096):
            pass


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_would_shut_everybody_out_is_refused_by_its_flag(name: str) -> None:
    with pytest.raises(ValueError, match=f"--max-{name} is -1"):
        parse_config(["--model=m", f"--max-{name}=-1"], 1)
    assert parse_config(["--model=m"], 1).limits == Limits()


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        yield raw


def frame(kind: int, payload: bytes) -> bytes:
    """HTTP/2 (RFC 9113, section 4.1): length, type, flags, stream, payload."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


def frames(raw: socket.socket) -> dict[int, bytes]:
    """The last frame of each kind that comes before the connection ends."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := raw.recv(65536):
            said += part
    found = {}
    while len(said) >= 9:
        size = int.from_bytes(said[:3])
        found[said[3]], said = said[9 : 9 + size], said[9 + size :]
    return found


def first_frame(raw: socket.socket) -> set[int]:
    """The kind of the first frame, or none where the connection was closed instead."""
    try:
        said = raw.recv(9)
    except ConnectionError:
        return set()
    return {said[3]} if len(said) >= 9 else set()
