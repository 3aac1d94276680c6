"""Callers are let in as the right principal; the others hear why not, and never a secret."""

from __future__ import annotations

import base64
import hmac
import json
import os
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from baton.security.auth_file import add_key, new_api_key
from router.auth.auth import RESUME_WAIT_S, Auth, Bill, BudgetWait
from router.auth.principal import Principal, as_caller, set_caller, tenant_of_call
from router.auth.rules import AuthFileUnusable, read_rules
from router.errors import NotAllowed, Overloaded, Unauthenticated, Unavailable
from router.request import RawRequest
from runtime.state.connection import Connection
from runtime.state.store import Store
from scheduling.admission.budgets import Budget, Levels, Rate, Taken
from scheduling.request import SloClass

SECRET = "a-shared-secret-of-at-least-32-bytes"
RULES = {"algorithm": "HS256", "key_file": "secret", "issuer": "login.example", "audience": "baton"}
ES_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, spki)


def auth_file(folder: Path, **said: Any) -> Path:
    (folder / "secret").write_text(f"{SECRET}\n")
    (folder / "es.pem").write_bytes(pem(ES_KEY))
    (folder / "rsa.pem").write_bytes(pem(RSA_KEY))
    path = folder / "auth.json"
    path.write_text(json.dumps(said))
    return path


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    said = {"iss": "login.example", "aud": "baton", "exp": 4_000_000_000, "tenant": "acme"} | claims
    return jwt.encode({name: line for name, line in said.items() if line is not None}, key, algorithm)


def bearer(credential: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "x"), ("authorization", f"Bearer {credential}")]


def test_a_key_is_its_tenant_with_its_classes_and_budget(tmp_path: Path, store: Store) -> None:
    path, key, other = tmp_path / "auth.json", new_api_key(), new_api_key()
    add_key(path, key, "acme", classes=["batch"], budget={"tokens_per_s": 100, "token_burst": 500})
    add_key(path, other, "other", operator=True)
    auth = Auth(path, store)
    budget = Budget(tokens=Rate(100, 500))
    assert auth.authenticate(bearer(key)) == Principal("acme", frozenset({SloClass.BATCH}), False, budget)
    assert auth.authenticate(bearer(other)) == Principal("other", operator=True)
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ([], "the call has no credential"),
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], "the call has no credential"),
        ([("authorization", b"Bearer a")], "the call has no credential"),
        ([("authorization", "Basic YTpi")], "is not a Bearer"),
        ([("authorization", "Bearer ")], "is not a Bearer"),
        (bearer("baton_wrong"), "key is not known"),
        (bearer("not.a.token"), "the token cannot be read"),
    ],
)
def test_nobody_else_is_let_in_and_nothing_is_repeated(
    tmp_path: Path, store: Store, metadata: list[tuple[str, str | bytes]], why: str
) -> None:
    path = auth_file(tmp_path, jwt=RULES)
    add_key(path, new_api_key(), "acme")
    with pytest.raises(Unauthenticated, match=why) as caught:
        Auth(path, store).authenticate(metadata)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "key_file", "key"),
    [("HS256", "secret", SECRET), ("ES256", "es.pem", ES_KEY), ("RS256", "rsa.pem", RSA_KEY)],
)
def test_a_token_is_its_claims(tmp_path: Path, algorithm: str, key_file: str, key: Any) -> None:
    said = RULES | {"algorithm": algorithm, "key_file": key_file}
    rules = read_rules(auth_file(tmp_path, jwt=said, tenants={"acme": {"requests_per_s": 2}}))
    budget = Budget(requests=Rate(2, 2))
    given = token(key, algorithm, classes=["interactive"], operator=True)
    assert rules.principal_of(given) == Principal("acme", frozenset({SloClass.INTERACTIVE}), True, budget)
    assert rules.principal_of(token(key, algorithm, tenant="new")) == Principal("new")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"exp": 1_000_000_000}, "has expired"),
        ({"nbf": 3_900_000_000}, "is not valid yet"),
        ({"aud": "other"}, "another audience"),
        ({"iss": "other"}, "another issuer"),
        ({"exp": None}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"tenant": None}, "names no tenant"),
        ({"tenant": ""}, "names no tenant"),
        ({"tenant": 7}, "names no tenant"),
        ({"classes": "batch"}, "not a list of class names"),
        ({"classes": ["best"]}, "not a list of class names"),
        ({"key": "another-secret-of-at-least-32-bytes!"}, "signature"),
        ({"algorithm": "HS512", "key": "k" * 64}, "algorithm"),
    ],
)
def test_a_token_that_is_not_good_says_why_without_itself(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    given = token(**changed)
    with pytest.raises(Unauthenticated, match=why) as caught:
        read_rules(auth_file(tmp_path, jwt=RULES)).principal_of(given)
    assert not any(part in str(caught.value) for part in given.split("."))


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(tmp_path: Path) -> None:
    """The best-known forgery: the verifier's public key, taken for HS256's secret."""
    rules = read_rules(auth_file(tmp_path, jwt=RULES | {"algorithm": "RS256", "key_file": "rsa.pem"}))
    claims = {"iss": "login.example", "aud": "baton", "exp": 4_000_000_000, "tenant": "acme"}
    none = jwt.encode(claims, "", "none")
    # By hand, since the library refuses to sign like this.
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    said = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mac = hmac.digest(pem(RSA_KEY).strip(), said, "sha256")
    forged = (said + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()
    for entry in (none, forged):
        with pytest.raises(Unauthenticated):
            rules.principal_of(entry)


@pytest.mark.parametrize(
    "said",
    [
        {"unknown": 1},
        {"keys": [{"sha256": "00", "tenant": "a"}]},
        {"keys": [{"sha256": "0" * 64}]},
        {"keys": [{"sha256": "0" * 64, "tenant": "a", "classes": ["best"]}]},
        {"keys": [{"sha256": "0" * 64, "tenant": "a", "operator": "yes"}]},
        {"tenants": {"a": {"tokens_per_s": 0}}},
        {"tenants": {"a": {"token_burst": 5}}},
        {"tenants": {"a": {"tokens": 5}}},
        {"tenants": []},
        {"jwt": RULES | {"algorithm": "none"}},
        {"jwt": RULES | {"key_file": "gone"}},
        {"jwt": RULES | {"algorithm": "RS256"}},
        {"jwt": {name: rule for name, rule in RULES.items() if name != "issuer"}},
        {"jwt": RULES | {"audience": ""}},
    ],
)
def test_a_file_that_is_no_good_is_named_at_the_start(tmp_path: Path, said: dict[str, Any]) -> None:
    path = auth_file(tmp_path, **said)
    with pytest.raises(AuthFileUnusable) as caught:
        read_rules(path)
    assert str(tmp_path) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_short_shared_secret_is_refused(tmp_path: Path) -> None:
    path = auth_file(tmp_path, jwt=RULES)
    (tmp_path / "secret").write_text("guess")
    with pytest.raises(AuthFileUnusable, match="short secret") as caught:
        read_rules(path)
    assert "guess" not in str(caught.value)


def test_a_changed_file_counts_at_once_and_a_broken_one_does_not(tmp_path: Path, store: Store) -> None:
    path, first, second = tmp_path / "auth.json", new_api_key(), new_api_key()
    add_key(path, first, "acme")
    auth = Auth(path, store)
    with pytest.raises(Unauthenticated):
        auth.authenticate(bearer(second))
    add_key(path, second, "other")
    assert auth.authenticate(bearer(second)).tenant == "other"
    path.write_text("{")
    os.utime(path, (1, 1))
    assert auth.authenticate(bearer(first)).tenant == "acme"
    path.unlink()
    assert auth.authenticate(bearer(first)).tenant == "acme"
    add_key(path, second, "other")
    with pytest.raises(Unauthenticated):
        auth.authenticate(bearer(first))


async def test_the_tenant_is_the_credentials_and_the_class_must_be_allowed() -> None:
    # As a coroutine it has a context of its own, in which it is the caller; other tests are nobody.
    named = RawRequest(tenant="acme", slo_class=int(SloClass.BATCH))
    assert as_caller(named) is named
    set_caller(Principal("acme", frozenset({SloClass.STANDARD, SloClass.BATCH})))
    assert as_caller(RawRequest(slo_class=int(SloClass.BATCH))).tenant == "acme"
    assert as_caller(named).tenant == "acme"
    assert as_caller(RawRequest()).tenant == "acme", "a request without a class is a standard one"
    with pytest.raises(NotAllowed, match=r"slo_class is interactive.*credential: batch, standard"):
        as_caller(RawRequest(slo_class=int(SloClass.INTERACTIVE)))
    with pytest.raises(NotAllowed, match="tenant"):
        as_caller(RawRequest(tenant="other"))
    with pytest.raises(NotAllowed, match="tenant"):
        tenant_of_call("other")


def test_what_the_door_knows_is_never_shown(tmp_path: Path) -> None:
    path = auth_file(tmp_path, jwt=RULES)
    add_key(path, "baton_secret", "acme")
    rules = read_rules(path)
    assert SECRET not in repr(rules)
    assert "keys=" not in repr(rules)


async def test_over_budget_newcomers_are_refused_and_resumed_streams_wait(
    tmp_path: Path, store: Store
) -> None:
    auth = Auth(auth_file(tmp_path), store)
    set_caller(Principal("slow", budget=Budget(requests=Rate(0.01, 1), tokens=Rate(0.1, 10))))
    await auth.admit(BudgetWait())
    with pytest.raises(Overloaded, match="over its budget") as caught:
        await auth.admit(BudgetWait())
    assert caught.value.retry_after_s is not None
    assert 0 < caught.value.retry_after_s <= 100
    assert await auth.charge(4, 6, 0, BudgetWait()) == Bill("slow", 6, 10)
    with pytest.raises(Overloaded):
        await auth.charge(4, 6, 0, BudgetWait())
    set_caller(Principal("quick", budget=Budget(requests=Rate(5, 1), tokens=Rate(100, 10))))
    await auth.admit(BudgetWait())
    await auth.admit(BudgetWait(RESUME_WAIT_S))
    assert await auth.charge(4, 6, 0, BudgetWait()) == Bill("quick", 6, 10)
    assert await auth.charge(4, 6, 2, BudgetWait(RESUME_WAIT_S)) == Bill("quick", 6, 8)


async def test_a_resumed_stream_waits_once_for_all_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_ms = iter([20, 0, 20])

    async def take_budget(*_: object) -> Taken:
        return Taken(next(waits_ms), Levels(0, 0, 0))

    away = Store(Connection(f"unix://{tmp_path}/nothing.sock"))
    monkeypatch.setattr(away, "take_budget", take_budget)
    set_caller(Principal("acme", budget=Budget(Rate(1, 1), Rate(1, 1))))
    auth, wait = Auth(auth_file(tmp_path), away), BudgetWait(0.03)
    await auth.admit(wait)
    with pytest.raises(Overloaded):
        await auth.charge(1, 1, 0, wait)
    await away.close()


async def test_what_was_not_generated_comes_back(tmp_path: Path, store: Store) -> None:
    set_caller(Principal("acme", budget=Budget(tokens=Rate(0.001, 100))))
    auth = Auth(auth_file(tmp_path), store)
    bill = await auth.charge(10, 90, 0, BudgetWait())
    assert bill is not None
    with pytest.raises(Overloaded):
        await auth.charge(1, 0, 0, BudgetWait())
    auth.refund(bill, 80)  # not waited for: what takes next does
    assert await auth.charge(10, 70, 0, BudgetWait()) is not None
    with pytest.raises(Overloaded):
        await auth.charge(1, 0, 0, BudgetWait())


async def test_the_price_of_tokenising_does_not_come_back(tmp_path: Path, store: Store) -> None:
    set_caller(Principal("acme", budget=Budget(tokens=Rate(0.001, 100))))
    auth = Auth(auth_file(tmp_path), store)
    assert await auth.admit(BudgetWait(), 640) == 10
    bill = await auth.charge(40, 20, 0, BudgetWait(), paid=10)
    assert bill is not None
    assert bill.total == 50, "what tokenising cost is a part of the prompt's tokens"
    auth.refund(bill, bill.total)
    assert await auth.admit(BudgetWait(), 5000) == 79, "the rest of the 90 that were left"
    with pytest.raises(Overloaded):
        await auth.admit(BudgetWait(), 1000)
    assert await auth.admit(BudgetWait(), 0) == 0, "a request without text"


async def test_without_a_budget_nothing_is_counted(tmp_path: Path, store: Store) -> None:
    auth = Auth(auth_file(tmp_path), store)
    set_caller(Principal("acme"))
    for _ in range(3):
        await auth.admit(BudgetWait())
        assert await auth.charge(10**9, 10**9, 0, BudgetWait()) is None


async def test_budgets_are_not_guessed_while_redis_is_away(tmp_path: Path) -> None:
    away = Store(Connection(f"unix://{tmp_path}/nothing.sock"))
    set_caller(Principal("acme", budget=Budget(requests=Rate(5, 1))))
    with pytest.raises(Unavailable, match="keeps the budgets"):
        await Auth(auth_file(tmp_path), away).admit(BudgetWait())
    await away.close()
