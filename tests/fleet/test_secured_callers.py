"""Callers of a secured fleet: what a key or a token opens, and whose requests, budgets and logs are apart."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from baton import Client, Credentials
from baton.errors import InvalidRequest, NotAllowed, Overloaded
from baton.security.auth_file import new_api_key
from baton.security.secret_files import replace_secret
from baton.types import Event, Sampling, Slo, SloClass, Stop
from tests.fleet.secured import Secured, secured_fleet
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration
TWO = Stop(max_tokens=2)
LONG = Stop(max_tokens=4000, ignore_eos=True)
"""So many that a stream still runs when clients that connect meanwhile have been slow to."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_fleet(tmp_path_factory.mktemp("secured")) as started:
        yield started


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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_tenant_over_its_budget_is_told_over_http_when_to_come_back(fleet: Secured, path: str) -> None:
    tenant = f"rare{path.replace('/', '-')}"
    key = fleet.new_key(tenant, "--requests-per-s", "0.01", "--request-burst", "2")
    said = {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    limit = {"max_output_tokens": 2} if path == "/v1/responses" else {"max_tokens": 2}
    responses = [
        httpx.post(
            f"https://{fleet.address('gateway-0')}{path}",
            headers={"authorization": f"Bearer {key}"},
            json=said | limit,
            verify=ssl.create_default_context(cafile=str(fleet.made.ca)),
            timeout=PATIENCE_S,
        )
        for _ in range(3)
    ]
    refused, error = responses[-1], responses[-1].json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "budget_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["retry-after-ms"].isdecimal()


def test_a_tenant_never_touches_blocks_or_requests_of_another(fleet: Secured) -> None:
    prompt = [7 + place % 50 for place in range(200)]

    def cached_tokens(client: Client) -> int:
        return client.complete(prompt, stop=TWO).finished.usage.cached_prompt_tokens

    for tenant in ("first", "second"):
        with fleet.bearer_client(fleet.new_key(tenant)) as client:
            usage = client.complete(prompt, stop=TWO).finished.usage
            # If a worker that was starved counted as lost, the second attempt has found blocks of the first.
            assert usage.cached_prompt_tokens == 0 or usage.attempts > 1
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
