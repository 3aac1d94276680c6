"""An upgrade that cannot work is explained where people look, and takes nothing down that serves.

`make test-kubernetes` runs these.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.kubernetes.fleets import COMPUTING, SMALL
from tests.kubernetes.load import Expected, under
from tests.kubernetes.release import Release, merged, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]


def redis(name: str, policy: str) -> str:
    """Return the manifest of a Redis that does not belong to a release."""
    labels = {"redis": name}
    command = ["redis-server", "--protected-mode", "no", "--save", "", "--maxmemory", "64mb"]
    container = {
        "name": "redis",
        "image": "redis:7.4.10-alpine",
        "imagePullPolicy": "Never",
        "command": [*command, "--maxmemory-policy", policy],
        "resources": SMALL,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "enableServiceLinks": False},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": 6379}]},
    }
    return yaml.safe_dump_all([pod, service])


KEEPING, EVICTING = "redis-that-keeps", "redis-that-evicts"


def using(name: str) -> Mapping[str, Any]:
    return {"redis": {"builtIn": {"enabled": False}, "url": f"redis://{name}:6379/0"}}


@pytest.fixture(scope="module")
def fleet(cluster: None) -> Iterator[Release]:
    """A fleet that serves, with a Redis of the user's for all that it keeps."""
    own = redis(KEEPING, "noeviction") + "---\n" + redis(EVICTING, "allkeys-lru")
    with release("bad-input", merged(COMPUTING, using(KEEPING), {"gateway": using(KEEPING)}), own) as made:
        yield made


BAD: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a missing secret": (
        {"redis": {"passwordSecret": {"name": "redis-password"}}},
        'redis.passwordSecret.name is "redis-password", but the namespace bad-input has no such Secret',
    ),
    "a Redis with eviction on": (
        using(EVICTING),
        "its maxmemory-policy is allkeys-lru; accepted: noeviction",
    ),
    "gateways' own Redis with eviction on": (
        {"gateway": using(EVICTING)},
        "its maxmemory-policy is allkeys-lru; accepted: noeviction",
    ),
    "a Redis that does not exist": (using("no-redis"), "its name does not resolve"),
    "a model that no node can hold": (
        {"pools": {"decode": {"resources": {name: {"memory": "4000Gi"} for name in ("requests", "limits")}}}},
        "Insufficient memory",
    ),
    "an image that is not there": ({"images": {"worker": {"tag": "missing"}}}, "baton-worker:missing"),
}
"""Values with what the status has to say about them."""


@pytest.mark.parametrize("what", BAD)
async def test_it_is_said_and_what_serves_goes_on(fleet: Release, expected: Expected, what: str) -> None:
    values, said = BAD[what]
    found: list[str] = []

    async def strike() -> None:
        found.append(await asyncio.to_thread(fleet.try_in_vain, values, said))

    streams = await under(fleet.doors(), strike)
    sys.stderr.write(f"{what}: {streams}\n")
    streams.check(expected)
    assert said in found[0]
