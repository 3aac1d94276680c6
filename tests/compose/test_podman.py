"""The same compose file under Podman: the fleet serves, and a killed worker costs no token.

`make test-podman` runs this with podman-compose, on the images that `make test-compose` built.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.compose.engine import CACHE, REDIS, run, write_deterministic
from tests.compose.streams import NUM_TOKENS, Doors, under

pytestmark = [pytest.mark.podman, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

DOORS = Doors("127.0.0.1:50051", ("http://127.0.0.1:8000/v1",))
IMAGES = ("baton-router", "baton-gateway", "baton-worker", REDIS)
# For a root who may not raise limits, on a host that has both versions of cgroups: CI machines and small VMs.
CONFINED_HOST = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""


def podman_compose(*arguments: str, timeout_s: float = 300.0) -> None:
    files = "-f", "docker-compose.yml", "-f", str(CACHE / "deterministic.yml")
    run(sys.executable, "-m", "podman_compose", *files, *arguments, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def fleet(images: None) -> Iterator[None]:
    """The fleet of docker-compose.yml in Podman, serving; nothing of it is left afterwards."""
    for image in IMAGES:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            subprocess.run(["podman", "load", "--quiet"], stdin=saved.stdout, check=True)
    if not _runs():
        (CACHE / "containers.conf").write_text(CONFINED_HOST, encoding="utf-8")
        os.environ["CONTAINERS_CONF"] = str(CACHE / "containers.conf")
    write_deterministic()
    podman_compose("down", "--volumes", "--timeout", "5")
    try:
        podman_compose("up", "--detach", "--no-build")
        yield
    finally:
        podman_compose("down", "--volumes", "--timeout", "5")


def _runs() -> bool:
    command = ["podman", "run", "--rm", "--entrypoint", "/venv/bin/python", "baton-gateway", "-c", ""]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


async def serves() -> None:
    """Return once the gateway says so: without systemd, Podman runs no health checks to wait for."""
    while True:
        try:
            await asyncio.to_thread(urllib.request.urlopen, "http://127.0.0.1:8000/health", timeout=4.0)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            await asyncio.sleep(0.5)
        else:
            return


def kill_a_decode_worker() -> None:
    run("podman", "kill", "baton_decode-1_1")
    run("podman", "start", "baton_decode-1_1")


async def test_streams_are_the_same_when_a_worker_is_killed(fleet: None) -> None:
    await serves()
    undisturbed = await under(DOORS, None)
    assert all(len(tokens) == NUM_TOKENS for tokens in undisturbed.tokens)
    received = await under(DOORS, kill_a_decode_worker)
    assert received.is_same(undisturbed)
    assert received.num_sent_again == 0
