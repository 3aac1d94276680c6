"""Certificates in a namespace's Secrets are made once, renewed in time, and signed by the same CA."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from baton.security.certificates import PARTS
from baton.security.kubernetes_secrets import Secrets, keep_certificates

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
PATH = "/api/v1/namespaces/serving/secrets"


class ApiServer(ThreadingHTTPServer):
    """Secrets as the API server keeps them: a change names the version that it replaces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Calls)
        self.secrets: dict[str, dict[str, Any]] = {}
        self.versions = count(1)
        self.writes = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        name = path.removeprefix(PATH).strip("/")
        if method == "GET":
            return (200, self.secrets[name]) if name in self.secrets else (404, {"reason": "NotFound"})
        assert body is not None
        named = body["metadata"]
        if (
            method == "PUT"
            and named.get("resourceVersion") != self.secrets[name]["metadata"]["resourceVersion"]
        ):
            return 409, {"reason": "Conflict"}
        if method == "POST" and named["name"] in self.secrets:
            return 409, {"reason": "AlreadyExists"}
        self.writes += 1
        self.secrets[named["name"]] = {
            **body,
            "metadata": {**named, "resourceVersion": str(next(self.versions))},
        }
        return 201, self.secrets[named["name"]]


class _Calls(BaseHTTPRequestHandler):
    server: ApiServer

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        code, item = 403, {"reason": "Forbidden"}
        if self.headers["Authorization"] == "Bearer right":
            code, item = self.server.answer(self.command, self.path, body)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(item).encode())

    do_GET = do_POST = do_PUT = _answer  # noqa: N815 - names that the library calls

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def api_server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


def secrets_of(api: ApiServer, token: str = "right") -> Secrets:
    return Secrets(api.url, "serving", token, None)


def keep(api: ApiServer, folder: Path, *hosts: str, after_days: float = 0) -> bool:
    return keep_certificates(
        secrets_of(api), "fleet-tls", folder, hosts, 90, NOW + dt.timedelta(days=after_days)
    )


def certificate(api: ApiServer, part: str) -> x509.Certificate:
    found = secrets_of(api).get(f"fleet-tls-{part}")
    assert found is not None
    return x509.load_pem_x509_certificate(found["tls.crt"])


def test_each_part_gets_a_secret_with_certificate_key_and_ca(api: ApiServer, tmp_path: Path) -> None:
    assert keep(api, tmp_path / "made", "fleet-router", "10.0.0.1")
    authority = secrets_of(api).get("fleet-tls-ca")
    assert authority is not None
    for part in PARTS:
        found = secrets_of(api).get(f"fleet-tls-{part}")
        assert found is not None
        assert set(found) == {"ca.crt", "tls.crt", "tls.key"}
        assert found["ca.crt"] == authority["ca.pem"]
        certificate(api, part).verify_directly_issued_by(x509.load_pem_x509_certificate(authority["ca.pem"]))


def test_good_certificates_are_left_alone(api: ApiServer, tmp_path: Path) -> None:
    keep(api, tmp_path / "first", "fleet-router", "10.0.0.1")
    writes = api.writes
    assert not keep(api, tmp_path / "second", "fleet-router", "10.0.0.1", after_days=59)
    assert api.writes == writes


@pytest.mark.parametrize(("hosts", "after_days"), [(("a",), 61.0), (("a", "b"), 0.0)])
def test_the_same_ca_renews_what_is_old_or_misses_a_host(
    api: ApiServer, tmp_path: Path, hosts: tuple[str, ...], after_days: float
) -> None:
    keep(api, tmp_path / "first", "a")
    authority, before = secrets_of(api).get("fleet-tls-ca"), certificate(api, "router")
    assert keep(api, tmp_path / "second", *hosts, after_days=after_days)
    assert secrets_of(api).get("fleet-tls-ca") == authority
    assert certificate(api, "router").serial_number != before.serial_number


@pytest.mark.parametrize("content", [None, {}, {"tls.crt": b"no certificate", "tls.key": b""}])
def test_a_lost_or_damaged_secret_is_made_again(
    api: ApiServer, tmp_path: Path, content: dict[str, bytes] | None
) -> None:
    keep(api, tmp_path / "first", "a")
    if content is None:
        del api.secrets["fleet-tls-worker"]
    else:
        secrets_of(api).put("fleet-tls-worker", content)
    assert keep(api, tmp_path / "second", "a")
    assert certificate(api, "worker").not_valid_after_utc > NOW


def test_a_refusal_of_the_api_server_names_the_call_and_the_reason(api: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"GET .*fleet-tls-ca: 403 .*Forbidden"):
        keep_certificates(secrets_of(api, "wrong"), "fleet-tls", tmp_path, (), 90, NOW)
    assert not api.secrets


def test_outside_a_pod_there_are_no_secrets_to_keep() -> None:
    with pytest.raises(ValueError, match="--secrets is for a pod"):
        Secrets.of_pod()
