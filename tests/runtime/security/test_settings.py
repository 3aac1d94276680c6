"""In the clear a service is reached from its own machine only, and no secret is taken from a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from router.config import parse_config as router_config
from runtime.security.settings import Security, add_security_flags, is_loopback, security_of
from runtime.security.tls import TlsFiles
from worker.startup.flags import parse_config as worker_config


def parse_router(flags: list[str]) -> object:
    return router_config(flags, 1)


def parse_worker(flags: list[str]) -> object:
    return worker_config(flags, "decode", 1)


TLS = TlsFiles(Path("ca"), Path("cert"), Path("key"))


def parsed(*flags: str) -> Security:
    parser = argparse.ArgumentParser()
    add_security_flags(parser)
    given = vars(parser.parse_args(flags))
    security = security_of(given)
    assert not given
    return security


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_tls(listen: str) -> None:
    assert is_loopback(listen)
    Security().check_listen(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.evil:1"])
def test_elsewhere_is_refused_without_tls_unless_asked_for_by_name(listen: str) -> None:
    assert not is_loopback(listen)
    with pytest.raises(ValueError, match=r"--listen is .*without TLS.*--insecure-listen"):
        Security().check_listen(listen)
    Security(tls=TLS).check_listen(listen)
    Security(insecure_listen=True).check_listen(listen)


@pytest.mark.parametrize(
    "url", ["redis://u:secret@h:1/0", "redis://:secret@h:1/0", "unix:///p?password=secret"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="--redis-password-file") as caught:
        Security().check_redis(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://u@127.0.0.1:1/0", "redis://[::1]:1/0", "unix://u@/p/s.sock", "unix:///p?db=7"]
)
def test_urls_of_this_machine_without_a_password_are_taken(url: str) -> None:
    Security().check_redis(url)
    Security(tls=TLS).check_redis(url)


@pytest.mark.parametrize("url", ["redis://u@h:1/0", "redis://10.0.0.1/0", "redis://localhost.evil:1"])
def test_remote_redis_in_the_clear_is_refused_unless_asked_for(url: str) -> None:
    for security in (Security(), Security(tls=TLS)):
        with pytest.raises(ValueError, match=r"in the clear; accepted: rediss://.*--insecure-listen"):
            security.check_redis(url)
    Security(insecure_listen=True).check_redis(url)


def test_redis_over_tls_needs_a_ca() -> None:
    with pytest.raises(ValueError, match="--redis-ca"):
        Security().check_redis("rediss://h:1/0")
    Security(redis_ca=Path("ca")).check_redis("rediss://h:1/0")
    Security(tls=TLS).check_redis("rediss://h:1/0")


def test_the_three_files_come_together_or_not_at_all() -> None:
    assert parsed() == Security()
    assert parsed("--tls-ca=ca", "--tls-cert=cert", "--tls-key=key").tls == TLS
    for given, missing in ((("--tls-ca=ca",), "cert"), (("--tls-ca=ca", "--tls-cert=cert"), "key")):
        with pytest.raises(ValueError, match=f"--tls-{missing} is missing"):
            parsed(*given)


@pytest.mark.parametrize("parse", [parse_router, parse_worker])
def test_every_service_refuses_to_be_reached_in_the_clear(parse: Callable[[list[str]], object]) -> None:
    for flags in (["--listen=0.0.0.0:0"], ["--redis=redis://u:secret@h:1/0"], ["--tls-ca=ca"]):
        with pytest.raises(ValueError, match="--") as caught:
            parse(["--model=m", *flags])
        assert "secret" not in str(caught.value)
    assert parse(["--model=m", "--listen=0.0.0.0:0", "--insecure-listen"])
    assert parse(["--model=m"])
