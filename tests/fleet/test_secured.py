"""A fleet of `baton up --secure`: who holds the right file gets in, and nobody else, at every door."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import re
import shlex
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import jwt
import pytest
import redis

from baton import Client, Credentials
from baton.errors import InvalidRequest, NotAllowed, Overloaded, Unavailable
from baton.security.auth_file import new_api_key
from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates, replace_secret
from baton.types import Event, Sampling, Slo, SloClass, Stop, Timeout
from baton.worker.v1 import kvtransfer_pb2, kvtransfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.fleet.secured import Secured, secured_fleet
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

TWO = Stop(max_tokens=2)
LONG = Stop(max_tokens=500, ignore_eos=True)
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
    _, _, ca, _, bearer, url, _, body = shlex.split(printed)
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
    with httpx.Client() as stranger, pytest.raises(httpx.ConnectError, match="certificate"):
        stranger.get(url)


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


def calls_of(client: Client) -> list[Callable[[], object]]:
    return [
        client.models,
        client.describe,
        lambda: client.count_tokens("x"),
        lambda: client.detokenize([5]),
        lambda: client.quote("x"),
        lambda: client.complete("x"),
        lambda: client.cancel("x"),
        lambda: next(client.watch()),
    ]


def test_without_a_good_key_every_call_is_refused_but_probes(fleet: Secured) -> None:
    made = fleet.made
    unknown = new_api_key()
    no_key = Client(fleet.router, credentials=Credentials(made.ca, made.cert("client"), made.key("client")))
    for client, why, reason in (
        (no_key, "the call has no credential", "CREDENTIAL_MISSING"),
        (fleet.bearer_client(unknown), "not known", "CREDENTIAL_INVALID"),
    ):
        with client:
            for call in calls_of(client):
                with pytest.raises(NotAllowed, match=why) as caught:
                    call()
                assert unknown not in str(caught.value)
                assert caught.value.reason == reason


def test_a_key_opens_what_it_says_and_no_more(fleet: Secured) -> None:
    key = fleet.new_key("batcher", "--allow-class", "batch")
    with fleet.bearer_client(key) as client:
        assert client.complete("x", slo=Slo(slo_class=SloClass.BATCH), stop=TWO).choices
        assert client.proven_tenant() == "batcher"
        with pytest.raises(
            NotAllowed, match="slo_class is standard; accepted with this credential: batch"
        ) as caught:
            client.complete("x", stop=TWO)
        assert caught.value.reason == "SLO_CLASS_NOT_ALLOWED"
        with pytest.raises(NotAllowed, match="for operators") as caught:
            client.drain("decode-0")
        assert caught.value.reason == "OPERATORS_ONLY"
    with fleet.bearer_client(key, tenant="owner") as client:
        with pytest.raises(NotAllowed, match="tenant") as caught:
            client.complete("x", slo=Slo(slo_class=SloClass.BATCH), stop=TWO)
        assert caught.value.reason == "TENANT_NOT_ALLOWED"


def test_tokens_of_the_right_issuer_are_keys_too(fleet: Secured) -> None:
    secret = "shared-with-the-issuer-and-long-enough"
    replace_secret(fleet.made.folder / "jwt.secret", secret.encode())
    door = fleet.made.folder / "door.json"
    rules = {"algorithm": "HS256", "key_file": "jwt.secret", "issuer": "login.example", "audience": "baton"}
    replace_secret(door, json.dumps(json.loads(door.read_text()) | {"jwt": rules}).encode())
    claims = {"iss": "login.example", "aud": "baton", "tenant": "acme"}
    good, old = (jwt.encode(claims | {"exp": exp}, secret) for exp in (4_000_000_000, 1_000_000_000))
    with fleet.bearer_client(good) as client:
        assert client.complete("x", stop=TWO).choices
        assert client.proven_tenant() == "acme"
    with fleet.bearer_client(old) as client, pytest.raises(NotAllowed, match="the token has expired"):
        client.complete("x", stop=TWO)


def test_a_tenant_over_its_budget_is_told_when_to_come_back(fleet: Secured) -> None:
    tokens = ["--tokens-per-s", "0.05", "--token-burst", "100"]
    short = Stop(max_tokens=60, token_ids=range(4, 1028))  # half of the vocabulary: it ends within a few
    with fleet.bearer_client(fleet.new_key("frugal", *tokens)) as client:
        # What was reserved and not generated comes back, or the second were over it.
        used = sum(client.complete([5], stop=short).finished.usage.output_tokens + 1 for _ in range(3))
        assert used <= 39
        client.complete([5], stop=Stop(max_tokens=60, ignore_eos=True))
        with pytest.raises(Overloaded, match="over its budget") as caught:
            client.complete([5], stop=Stop(max_tokens=60, ignore_eos=True))
    assert 1 < caught.value.retry_after_s < 1220
    assert caught.value.reason == "BUDGET_EXCEEDED"
    requests = ["--requests-per-s", "0.01", "--request-burst", "2"]
    with fleet.bearer_client(fleet.new_key("rare", *requests)) as client:
        client.count_tokens("x")
        client.quote("x")
        with pytest.raises(Overloaded, match="over its budget"):
            client.complete("x", stop=TWO)


def test_a_tenant_never_touches_blocks_or_requests_of_another(fleet: Secured) -> None:
    prompt = [7 + place % 50 for place in range(200)]

    def cached_tokens(client: Client) -> int:
        return client.complete(prompt, stop=TWO).finished.usage.cached_prompt_tokens

    for tenant in ("first", "second"):
        with fleet.bearer_client(fleet.new_key(tenant)) as client:
            assert cached_tokens(client) == 0
            deadline = time.monotonic() + PATIENCE_S
            while not cached_tokens(client):  # The worker reports blocks after the step that filled them.
                assert time.monotonic() < deadline, "the tenant finds its own blocks"
    with (
        fleet.client() as owner,
        fleet.bearer_client(fleet.new_key("third")) as other,
        contextlib.closing(events(owner, "mine")) as stream,
    ):
        next(stream)
        assert not other.cancel("mine")
        assert owner.cancel("mine")


def events(client: Client, request_id: str) -> Generator[Event, None, None]:
    yield from client.generate("The list is", stop=LONG, request_id=request_id)


def test_nothing_that_was_asked_answered_or_shown_is_in_a_log(fleet: Secured) -> None:
    prompt = "A very particular sentence about the zeppelin"
    key = fleet.new_key("discreet")
    with fleet.bearer_client(key) as client:
        answer = client.complete(prompt, stop=Stop(max_tokens=30, ignore_eos=True))
        with pytest.raises(InvalidRequest):
            client.complete(prompt, sampling=Sampling(temperature=-1))
        with pytest.raises(InvalidRequest):
            client.complete(prompt, stop=Stop(min_tokens=10**6))
    text, logs = answer.choices[0].text, fleet.logs()
    assert len(text) > 10
    assert "router_connected" in logs
    secrets = [path.read_text().strip() for path in fleet.made.folder.glob("*.password")]
    for hidden in (prompt, "zeppelin", text, text[:10], key, *secrets):
        assert hidden not in logs
    assert "PRIVATE KEY" not in logs


def test_batches_run_for_their_tenant_by_the_gateways_own_key(fleet: Secured) -> None:
    context = ssl.create_default_context(cafile=str(fleet.made.ca))
    url = f"https://{fleet.address('gateway-0')}"
    keys = {
        "acme": fleet.new_key("acme", "--allow-class", "batch"),
        "other": fleet.new_key("other", "--allow-class", "interactive"),
    }
    row = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "The list is", "max_tokens": 2},
    }

    def call(tenant: str, method: str, path: str, **sent: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {keys[tenant]}"}
        return httpx.request(method, url + path, headers=headers, verify=context, timeout=PATIENCE_S, **sent)

    def create(tenant: str) -> tuple[str, httpx.Response]:
        form = {"data": {"purpose": "batch"}, "files": {"file": json.dumps(row).encode()}}
        file = call(tenant, "POST", "/v1/files", **form).json()["id"]
        about = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        return file, call(tenant, "POST", "/v1/batches", json=about)

    file, created = create("acme")
    batch = created.json()["id"]
    _, refused = create("other")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "slo_class_not_allowed")
    for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/batches/{batch}"):
        assert call("acme", "GET", path).status_code == 200
        assert call("other", "GET", path).status_code == 404
    assert file not in call("other", "GET", "/v1/files").text
    assert batch not in call("other", "GET", "/v1/batches").text
    deadline = time.monotonic() + PATIENCE_S
    while (found := call("acme", "GET", f"/v1/batches/{batch}").json())["status"] != "completed":
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert found["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert call("other", "GET", f"/v1/files/{found['output_file_id']}/content").status_code == 404
    assert httpx.get(f"{url}/v1/files", verify=context).status_code == 401


def test_stored_responses_belong_to_the_tenant_whatever_key_it_shows(fleet: Secured) -> None:
    context = ssl.create_default_context(cafile=str(fleet.made.ca))
    keys = [fleet.new_key("writer"), "", fleet.new_key("reader"), "unknown"]
    (fleet.run_dir / "writer.key").unlink()
    keys[1] = fleet.new_key("writer")

    def call(key: str, method: str, path: str = "", body: Any = None) -> httpx.Response:
        url = f"https://{fleet.address('gateway-0')}/v1/responses{path}"
        headers = {"authorization": f"Bearer {key}", "idempotency-key": "mine"} if key else {}
        return httpx.request(method, url, headers=headers, json=body, verify=context, timeout=PATIENCE_S)

    body = {"input": "hello", "max_output_tokens": 2, "store": True}
    written = call(keys[0], "POST", "", body).json()
    one = f"/{written['id']}"
    assert [call(key, "GET", one).status_code for key in (*keys, "")] == [200, 200, 404, 401, 401]
    refused = [call(key, "POST", "", body | {"previous_response_id": written["id"]}) for key in keys[1:]]
    # The writer's other key has that Idempotency-Key in use; the reader's has not, and no such response.
    assert [response.status_code for response in refused] == [409, 400, 401]
    assert refused[1].json()["error"]["code"] == "previous_response_not_found"
    assert call(keys[2], "POST", "", body | {"input": "other"}).json()["id"] == written["id"]
    assert call(keys[2], "DELETE", one).status_code == 200
    assert call(keys[1], "GET", one).json() == written


def test_only_a_delegate_acts_for_another_tenant(fleet: Secured) -> None:
    made, key = fleet.made, fleet.new_key("mallory")
    delegate = (made.folder / "delegate.key").read_text(encoding="ascii").strip()
    for secret, slo_class, reason in (
        (key, SloClass.BATCH, "TENANT_NOT_ALLOWED"),
        (delegate, SloClass.INTERACTIVE, "SLO_CLASS_NOT_ALLOWED"),
        (delegate, SloClass.BATCH, None),
    ):
        shown = Acting(made.ca, made.cert("client"), made.key("client"), _secret_file(fleet, secret))
        with Client(fleet.router, credentials=shown) as client:
            if reason is None:
                assert client.complete("x", slo=Slo(slo_class=slo_class), stop=TWO).choices
            else:
                with pytest.raises(NotAllowed) as caught:
                    client.complete("x", slo=Slo(slo_class=slo_class), stop=TWO)
                assert caught.value.reason == reason


class Acting(Credentials):
    """Credentials that claim to act for another tenant."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (*Credentials.metadata(self), ("x-baton-tenant", "acme"))


def _secret_file(fleet: Secured, secret: str) -> Path:
    file = fleet.run_dir / f"{hashlib.sha256(secret.encode()).hexdigest()[:8]}.acting"
    replace_secret(file, secret.encode())
    return file
