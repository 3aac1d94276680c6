"""Routers behind names: which are known, which are called, and what stays connected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from baton.errors import Unavailable
from baton.routers import Routers, is_name, of_one_family, resolved


class Connected:
    """A transport that is called by nobody."""

    def __init__(self, address: str, name: str = "") -> None:
        self.address, self.name, self.closed = address, name, False

    async def close(self) -> None:
        self.closed = True

    unary: Any = None
    stream: Any = None


class Dns:
    def __init__(self, found: Sequence[str] | OSError) -> None:
        self.found = found

    async def resolve(self, address: str) -> Sequence[str]:
        if isinstance(self.found, OSError):
            raise self.found
        return self.found


def routers_of(dns: Dns) -> Routers:
    return Routers(["fleet:50051"], Connected, resolve=dns.resolve)


async def looked(routers: Routers, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Look names up once more; return the routers that are known then."""
    monkeypatch.setattr(routers, "_looked_at", -1e9)
    await routers.look()
    while routers._looking is not None:
        await asyncio.sleep(0)
    return [(each.address, each.name) for each in routers.transports if isinstance(each, Connected)]


async def test_each_router_behind_a_name_is_called_in_turn_by_that_name() -> None:
    routers = routers_of(Dns(["10.0.0.1:50051", "10.0.0.2:50051"]))
    called = [await routers.next() for _ in range(4)]
    assert [(each.address, each.name) for each in called[:2] if isinstance(each, Connected)] == [
        ("10.0.0.1:50051", "fleet"),
        ("10.0.0.2:50051", "fleet"),
    ]
    assert called[2:] == called[:2]
    assert routers.has_other(called[0])


async def test_a_name_of_one_router_is_left_to_grpc() -> None:
    routers = routers_of(Dns(["10.0.0.1:50051"]))
    assert [(await routers.next()).address for _ in range(2)] == ["fleet:50051"] * 2


async def test_routers_that_stay_keep_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Dns(["10.0.0.1:50051", "10.0.0.2:50051"])
    routers = routers_of(dns)
    await routers.next()
    stays = routers.transports[1]
    dns.found = ["10.0.0.2:50051", "10.0.0.3:50051"]
    assert [address for address, _ in await looked(routers, monkeypatch)] == dns.found
    assert routers.transports[0] is stays
    dns.found = ["10.0.0.2:50051"]
    assert await looked(routers, monkeypatch) == [("10.0.0.2:50051", "fleet")]
    assert routers.transports == (stays,)


@pytest.mark.parametrize("found", [[], OSError("no answer")])
async def test_known_routers_stay_while_names_are_not_found(
    found: list[str] | OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    dns = Dns(["10.0.0.1:50051", "10.0.0.2:50051"])
    routers = routers_of(dns)
    await routers.next()
    before = routers.transports
    dns.found = found
    await looked(routers, monkeypatch)
    assert routers.transports == before


async def test_an_error_is_explained_by_the_name_of_the_certificate() -> None:
    explained = []

    async def explain(error: Unavailable, name: str) -> Unavailable:
        explained.append((error.address, name))
        return error

    dns = Dns(["10.0.0.1:50051", "10.0.0.2:50051"])
    routers = Routers(["fleet:50051"], Connected, explain, dns.resolve)
    await routers.next()
    for address in ("10.0.0.2:50051", "elsewhere:1"):
        await routers.explained(Unavailable("away", address))
    assert explained == [("10.0.0.2:50051", "fleet"), ("elsewhere:1", "")]


async def test_what_is_no_name_is_not_looked_up() -> None:
    for address in ("127.0.0.1:50051", "[::1]:50051", "unix:/run/router.sock", "dns:///fleet:50051"):
        assert not is_name(address)
        assert await resolved(address) == (address,)
    assert is_name("fleet.default.svc:50051")


def test_the_family_with_more_addresses_counts() -> None:
    from socket import AF_INET, AF_INET6

    four = [(AF_INET, f"10.0.0.{last}", 1) for last in (2, 1)]
    assert of_one_family([(AF_INET6, "fd00::1", 1), *four]) == ("10.0.0.1:1", "10.0.0.2:1")
    assert of_one_family([(AF_INET6, "::1", 1), four[0]]) == ("[::1]:1",)
    assert of_one_family([]) == ()
