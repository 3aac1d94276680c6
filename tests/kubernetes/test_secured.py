"""A fleet with mutual TLS on every channel, by Secrets of its user or of the chart's own Job.

`make test-kubernetes` runs these.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.security.certificates import PARTS, make_certificates
from baton.security.secret_files import Certificates
from tests.kubernetes.fleets import COMPUTING
from tests.kubernetes.images import FIRST
from tests.kubernetes.load import Expected, under
from tests.kubernetes.release import Release, images, merged, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

SERVICES = "router", "routers", "gateway", "redis", "redis-gateway"
HOSTS = [f"baton-{service}" for service in SERVICES]
DAYS, OLD = 30, "old-"
USED = "router", "worker", "gateway", "redis"
TLS: Mapping[str, Any] = {
    "tls": {"mode": "secrets", "requireClientCertificates": True, "secrets": {part: part for part in USED}}
}

REDIS_ALONE: Mapping[str, Any] = {
    "tls": {"mode": "hook"},
    "router": {"replicas": 0},
    "gateway": {"enabled": False},
    "pools": {"prefill": {"replicas": 0}, "decode": {"replicas": 0}},
}
"""Certificates by the chart's Job, and of the fleet only its Redis, which serves with one of them."""


def secrets(certificates: Certificates, prefix: str) -> str:
    """Return the manifests of a Secret for each part."""

    def secret(part: str) -> Mapping[str, Any]:
        files = {
            "ca.crt": certificates.ca,
            "tls.crt": certificates.cert(part),
            "tls.key": certificates.key(part),
        }
        data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{prefix}{part}"}, "data": data}

    return yaml.safe_dump_all([secret(part) for part in PARTS])


@pytest.fixture(scope="module")
def fleet(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A fleet that serves, with expired certificates of its CA beside those that it uses."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)
    expired = secrets(make_certificates(folder, HOSTS, DAYS, now - 2 * dt.timedelta(days=DAYS)), OLD)
    certificates = make_certificates(folder, HOSTS, DAYS, now)
    manifests = f"{expired}---\n{secrets(certificates, '')}"
    with release("secured", merged(COMPUTING, TLS), manifests, certificates) as made:
        yield made


async def test_streams_are_the_same_when_a_decode_worker_leaves(fleet: Release, expected: Expected) -> None:
    def strike() -> None:
        pod = fleet.streaming("worker", "decode")
        fleet.kubectl("delete", "pod", pod.name)
        fleet.wait_until_rolled_out()

    streams = await under(fleet.doors(), lambda: asyncio.to_thread(strike))
    sys.stderr.write(f"a worker of a secured fleet leaves: {streams}\n")
    streams.check(expected)


@pytest.mark.parametrize("part", ["worker", "gateway"])
async def test_an_expired_certificate_is_said_and_what_serves_goes_on(
    fleet: Release, expected: Expected, part: str
) -> None:
    said, found = "/tls/tls.crt is not valid now", list[str]()

    async def strike() -> None:
        values = {"tls": {"secrets": {part: f"{OLD}{part}"}}}
        found.append(await asyncio.to_thread(fleet.try_in_vain, values, said))

    streams = await under(fleet.doors(), strike)
    sys.stderr.write(f"an expired certificate for a {part}: {streams}\n")
    streams.check(expected)
    assert said in found[0]


def test_the_job_makes_certificates_and_makes_what_is_lost_again(cluster: None) -> None:
    def made() -> dict[str, Mapping[str, str]]:
        listed = json.loads(hooked.kubectl("get", "secrets", "--output=json"))["items"]
        named = {item["metadata"]["name"]: item.get("data", {}) for item in listed}
        return {name.removeprefix("baton-tls-"): named[name] for name in named if "-tls-" in name}

    with release("hooked", merged(COMPUTING, REDIS_ALONE)) as hooked:
        first = made()
        assert set(first) >= {"ca", *USED}
        hooked.upgrade(images(FIRST))
        assert made() == first, "certificates that are good for long were replaced"
        hooked.kubectl("delete", "secret", "baton-tls-worker")
        hooked.upgrade(images(FIRST))
        again = made()
        assert set(again) == set(first)
        assert again["ca"] == first["ca"]
        assert again["worker"]["tls.crt"] != first["worker"]["tls.crt"]
