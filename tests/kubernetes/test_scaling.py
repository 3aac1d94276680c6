"""Decode workers are added and removed under streams: no token is lost, and workers leave in bounded time.

`make test-kubernetes` runs these.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.fleets import TIMED
from tests.kubernetes.images import FIRST
from tests.kubernetes.load import under, undisturbed
from tests.kubernetes.node import exits
from tests.kubernetes.programs import wait_until
from tests.kubernetes.release import Pod, Release, images, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

FEW, MANY = 2, 8
GRACE_S = 45.0
"""The chart's default time for a pod to leave."""


@pytest.fixture(scope="module")
def fleet(cluster: None) -> Iterator[Release]:
    """A fleet of timed workers, which compute nothing: nine of them fit on two cores."""
    with release("scaling", TIMED) as made:
        yield made


def scale(fleet: Release, replicas: int) -> None:
    fleet.upgrade(images(FIRST), {"pools": {"decode": {"replicas": replicas}}}, wait=False)


def streaming(fleet: Release) -> dict[str, Pod]:
    """Return the decode workers that stream now, by name."""
    pods = {pod.name: pod for pod in fleet.pods("worker", "decode") if pod.is_ready and not pod.is_leaving}
    before = {name: pod.tokens for name, pod in pods.items()}
    time.sleep(0.5)
    return {name: pod for name, pod in pods.items() if pod.tokens > before[name] > 0}


async def test_a_fleet_grows_and_shrinks_under_streams(fleet: Release) -> None:
    expected = await undisturbed(fleet.doors())
    lasted_s = {}

    def grow() -> None:
        began_s = time.monotonic()
        scale(fleet, MANY)
        fleet.wait_until_rolled_out()
        wait_until(f"more than {FEW} workers stream", lambda: len(streaming(fleet)) > FEW, 60.0)
        lasted_s["grow"] = time.monotonic() - began_s

    def shrink() -> None:
        before = {pod.name: pod for pod in fleet.pods("worker", "decode")}
        used, began_s = streaming(fleet), time.time()
        scale(fleet, FEW)
        # Their objects stay longer than their processes.
        wait_until("the others are gone", lambda: len(fleet.pods("worker", "decode")) == FEW, 240.0)
        left = set(before) - {pod.name for pod in fleet.pods("worker", "decode")}
        assert left & set(used), "none of the workers that left had streams"
        ended = exits(began_s)
        ends = [ended[container] for name in left for container in before[name].containers]
        assert [code for code, _ in ends] == [0] * (MANY - FEW), "a worker was killed before it had drained"
        lasted_s["shrink"] = max(when_s for _, when_s in ends) - began_s
        assert lasted_s["shrink"] < GRACE_S

    async def struck() -> None:
        await asyncio.to_thread(grow)
        await asyncio.to_thread(shrink)

    streams = await under(fleet.doors(), struck)
    sys.stderr.write(
        f"{FEW} to {MANY} decode workers in {lasted_s['grow']:.0f} s, the last of those that left "
        f"ended after {lasted_s['shrink']:.1f} s: {streams}\n"
    )
    streams.check(expected)
