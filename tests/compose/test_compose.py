"""The composed fleet under what befalls containers: every stream equals the undisturbed one.

`make test-compose` runs these. They need a Docker engine, Compose 2, and about half an hour.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.compose.engine import bring_back, compose, container, metrics_of, run
from tests.compose.streams import NUM_TOKENS, Doors, Received, struck, under

pytestmark = [pytest.mark.compose, pytest.mark.integration, pytest.mark.timeout(2400, func_only=True)]

DOORS = Doors("127.0.0.1:50051", ("http://127.0.0.1:8000/v1",))


def kill_a_decode_worker() -> None:
    run("docker", "kill", container("decode-1"))


def pause_a_decode_worker() -> None:
    run("docker", "pause", container("decode-2"))
    run("sleep", "8")
    run("docker", "unpause", container("decode-2"))


def cut_a_prefill_worker_off() -> None:
    run("docker", "network", "disconnect", "baton_default", container("prefill-1"))


def restart_redis() -> None:
    run("docker", "restart", "--time", "0", container("redis"))


def replace_the_workers() -> None:
    """Replace one container after another by one of a new image: each drains first."""
    build_anew("decode-1")
    for worker in ("prefill-1", "prefill-2", "decode-1", "decode-2"):
        replace(worker)


def replace_the_router() -> None:
    """It serves until its grace ends; what is left then waits for its successor."""
    build_anew("router")
    replace("router")


def kill_the_router() -> None:
    run("docker", "kill", container("router"))
    run("docker", "start", container("router"))


def replace_the_gateway() -> None:
    build_anew("gateway")
    replace("gateway")


def kill_the_gateway() -> None:
    run("docker", "kill", container("gateway"))
    run("docker", "start", container("gateway"))


def build_anew(service: str) -> None:
    """Give the name of a service's image to another one, as the build of a changed checkout does."""
    image = inspected(service)["Config"]["Image"]
    run("docker", "build", "--tag", image, "-", input=f"FROM {image}\nLABEL built={time.time_ns()}\n")


def replace(service: str) -> None:
    """Run the command of docs/compose.md, which replaces a container only if its image is another one."""
    before = inspected(service)["Image"]
    compose("up", "--detach", "--no-build", "--no-deps", "--wait", service, timeout_s=300.0)
    assert inspected(service)["Image"] != before, service


def inspected(service: str) -> Any:
    """Return what Docker says of a service's container."""
    (found,) = json.loads(run("docker", "inspect", container(service)))
    return found


def transports() -> set[str]:
    """Return how decode workers received KV; `shm` needs the folder where workers meet."""
    metrics = "".join(metrics_of(worker) for worker in ("decode-1", "decode-2"))
    return set(re.findall(r'^baton_kv_bytes_total{transport="(\w+)"}', metrics, flags=re.MULTILINE))


def mend() -> None:
    """Bring the fleet back to what the file says."""
    # A container that was cut off does not rejoin its network by itself.
    compose("rm", "--stop", "--force", "prefill-1")
    bring_back()


STRIKES = (
    kill_a_decode_worker,
    pause_a_decode_worker,
    cut_a_prefill_worker_off,
    restart_redis,
    replace_the_workers,
    replace_the_router,
    kill_the_router,
)
GATEWAY_STRIKES = (replace_the_gateway, kill_the_gateway)
MUST_HIT: Mapping[Callable[[], None], Callable[[Received], bool]] = {
    kill_the_router: lambda received: received.num_resumed >= len(received.tokens),
    kill_the_gateway: lambda received: received.num_sent_again >= len(received.texts),
}
"""How strikes show that they have hit every stream of a kind; others show nothing."""


async def test_streams_are_the_same_whatever_befalls_containers(fleet: None) -> None:
    undisturbed = await under(DOORS, None)
    assert all(len(tokens) == NUM_TOKENS for tokens in undisturbed.tokens)
    assert undisturbed.num_resumed == undisturbed.num_sent_again == 0
    assert transports() == {"shm"}
    for strike in (*STRIKES, *GATEWAY_STRIKES):
        received = await struck(DOORS, strike, mend, undisturbed, MUST_HIT.get(strike, lambda _: True))
        assert received.num_sent_again == 0 or strike in GATEWAY_STRIKES, strike.__name__


def test_containers_are_confined(fleet: None) -> None:
    services = compose("ps", "--all", "--services").split()
    assert set(services) >= {"redis", "router", "gateway", "prefill-1", "decode-1"}
    for service in services:
        found = inspected(service)
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert found["HostConfig"]["CapDrop"] == ["ALL"], service
        assert found["Config"]["User"].split(":")[0] not in ("", "0", "root"), service
