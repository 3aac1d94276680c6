"""Redis behind TLS and a password: a real server, a real handshake, and clear words when either fails."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import redis.asyncio

from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates, write_secret
from runtime.state.access import RedisAccess, SecretUnusable
from runtime.state.connection import Connection
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from tests.tls_proxy import tls_proxy

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("fleet"), (), 30, dt.datetime.now(dt.UTC))


def access_of(made: Certificates, part: str = "router") -> RedisAccess:
    return RedisAccess(made.ca, made.cert(part), made.key(part))


async def test_the_store_works_over_mutual_tls(made: Certificates, redis_url: str) -> None:
    async with tls_proxy(made, "redis", redis_url.removeprefix("unix://")) as port:
        store = await Store.connect(f"rediss://localhost:{port}/0", access=access_of(made))
        assert (await store.queue_status()).waiting == 0
        await store.close()


async def test_a_redis_of_another_ca_or_role_is_not_talked_to(
    made: Certificates, redis_url: str, tmp_path: Path
) -> None:
    foreign = make_certificates(tmp_path, (), 30, dt.datetime.now(dt.UTC))
    socket = redis_url.removeprefix("unix://")
    for impostor, part in ((foreign, "redis"), (made, "client")):
        async with tls_proxy(impostor, part, socket) as port:
            with pytest.raises(StoreUnavailable):
                await Store.connect(f"rediss://localhost:{port}/0", timeout_s=0.5, access=access_of(made))


async def test_without_a_certificate_redis_is_not_reached(made: Certificates, redis_url: str) -> None:
    async with tls_proxy(made, "redis", redis_url.removeprefix("unix://")) as port:
        with pytest.raises(StoreUnavailable):
            await Store.connect(f"rediss://localhost:{port}/0", timeout_s=0.5, access=RedisAccess(ca=made.ca))


async def test_a_user_and_a_password_from_a_file_open_the_door(redis_url: str, tmp_path: Path) -> None:
    secret, wrong = tmp_path / "password", tmp_path / "wrong"
    write_secret(secret, b"correct horse\n")
    write_secret(wrong, b"battery staple\n")
    url = redis_url.replace("unix://", "unix://fleet@")
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.execute_command("ACL", "SETUSER", "fleet", "on", ">correct horse", "~*", "&*", "+@all")
    store = await Store.connect(url, access=RedisAccess(password_file=secret))
    assert (await store.queue_status()).waiting == 0
    await store.close()
    with pytest.raises(StoreUnavailable, match="refused us") as caught:
        await Store.connect(url, access=RedisAccess(password_file=wrong))
    assert "staple" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff"])
def test_a_password_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretUnusable, match="password") as caught:
        Connection("redis://h:1/0", RedisAccess(password_file=path))
    assert "two" not in str(caught.value)


def test_certificate_files_that_are_none_are_named(made: Certificates, tmp_path: Path) -> None:
    for access in (
        RedisAccess(ca=tmp_path / "gone"),
        RedisAccess(ca=made.ca, cert=made.cert("router"), key=made.key("worker")),
    ):
        with pytest.raises(SecretUnusable, match=r"gone|router\.pem"):
            Connection("rediss://h:1/0", access)
