"""A release under what befalls pods: no stream loses, repeats or changes a token, and none is refused.

`make test-kubernetes` runs these.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.kubernetes.fleets import COMPUTING
from tests.kubernetes.images import FIRST, SECOND
from tests.kubernetes.load import Expected, under
from tests.kubernetes.node import NODE, docker, exits, kubectl
from tests.kubernetes.programs import wait_until
from tests.kubernetes.release import Pod, Release, images, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

GRACE_S = 45.0
"""The chart's default time for a pod to leave."""


@pytest.fixture(scope="module")
def fleet(cluster: None) -> Iterator[Release]:
    """A fleet of the demo model that serves."""
    with release("disruptions", COMPUTING) as made:
        yield made


def leave(fleet: Release, pod: Pod) -> None:
    """Ask a pod to leave and wait until it is gone; raise unless it drained in its time."""
    began_s = time.time()
    fleet.kubectl("delete", "pod", pod.name, "--wait=false")
    # The object stays longer than the process.
    wait_until(f"{pod.name} is gone", lambda: pod.name not in {left.name for left in fleet.pods()}, 180.0)
    code, when_s = exits(began_s)[pod.containers[0]]
    assert code == 0
    assert when_s - began_s < GRACE_S


def delete_a_decode_worker(fleet: Release) -> None:
    pod = fleet.streaming("worker", "decode")
    leave(fleet, pod)


def delete_a_prefill_worker(fleet: Release) -> None:
    (pod,) = fleet.pods("worker", "prefill")
    leave(fleet, pod)


def delete_a_router(fleet: Release) -> None:
    pod = fleet.streaming("router")
    leave(fleet, pod)


def delete_a_gateway(fleet: Release) -> None:
    pod = fleet.streaming("gateway")
    leave(fleet, pod)


def kill(fleet: Release, pod: Pod) -> None:
    """Kill a pod's container, which the kubelet then starts again in the same pod."""
    (container,) = pod.containers
    docker("kill", container)
    wait_until(
        f"{pod.name} runs again",
        lambda: [p.containers for p in fleet.pods() if p.name == pod.name] not in ([[container]], [[]]),
        180.0,
    )


def kill_a_decode_worker(fleet: Release) -> None:
    kill(fleet, fleet.streaming("worker", "decode"))


def kill_a_router(fleet: Release) -> None:
    kill(fleet, fleet.streaming("router"))


def kill_redis(fleet: Release) -> None:
    (pod,) = fleet.pods("redis")
    kill(fleet, pod)


def evict_the_decode_workers(fleet: Release) -> None:
    """Drain the only node: the budget lets one go, and the other has to stay until that one is replaced."""
    evicted = fleet.streaming("worker", "decode")
    before = {pod.name for pod in fleet.pods("worker", "decode")}
    selector = "--pod-selector=baton/pool=decode,app.kubernetes.io/instance=baton"
    kubectl("cordon", NODE)
    try:
        with pytest.raises(RuntimeError, match="disruption budget"):
            fleet.kubectl("drain", NODE, selector, "--delete-emptydir-data", "--force", "--timeout=60s")
    finally:
        kubectl("uncordon", NODE)
    left = {pod.name for pod in fleet.pods("worker", "decode") if pod.is_ready and not pod.is_leaving}
    assert len(left & before) == 1, evicted


def upgrade_every_image(fleet: Release) -> None:
    fleet.streaming("worker", "decode"), fleet.streaming("router"), fleet.streaming("gateway")
    fleet.upgrade(images(SECOND))
    check_images(fleet, SECOND)


def roll_back(fleet: Release) -> None:
    fleet.streaming("worker", "decode"), fleet.streaming("router"), fleet.streaming("gateway")
    fleet.rollback()
    check_images(fleet, FIRST)


def check_images(fleet: Release, tag: str) -> None:
    """Raise unless all pods of the fleet are of one version."""
    ours = {pod.image for pod in fleet.pods() if pod.image.startswith("baton-")}
    assert ours == {f"baton-router:{tag}", f"baton-gateway:{tag}", f"baton-worker:{tag}"}


STRIKES = (
    kill_a_decode_worker,
    kill_a_router,
    kill_redis,
    delete_a_decode_worker,
    delete_a_prefill_worker,
    delete_a_router,
    delete_a_gateway,
    evict_the_decode_workers,
    upgrade_every_image,
    roll_back,
)


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: strike.__name__)
async def test_streams_are_the_same(
    fleet: Release, expected: Expected, strike: Callable[[Release], None]
) -> None:
    async def struck() -> None:
        await asyncio.to_thread(strike, fleet)
        await asyncio.to_thread(fleet.wait_until_rolled_out)

    began_s = time.monotonic()
    streams = await under(fleet.doors(), struck)
    lasted_s = time.monotonic() - began_s
    sys.stderr.write(f"{strike.__name__}: {streams}, {lasted_s:.0f} s in all\n")
    streams.check(expected)
