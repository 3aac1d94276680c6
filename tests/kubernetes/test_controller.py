"""The controller rolls out and scales a pool under streams: no token is lost, and the status names each wait.

`make test-kubernetes` runs these.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.kubernetes.build import ROOT
from tests.kubernetes.fleets import SMALL, TIMED
from tests.kubernetes.images import FIRST, SECOND
from tests.kubernetes.load import Expected, under
from tests.kubernetes.names import events
from tests.kubernetes.node import KUBECTL, exits, kubectl
from tests.kubernetes.release import Release, images, merged, release

pytestmark = [pytest.mark.kubernetes, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

POOL = "baton-decode"
FEW, MANY = 2, 8
SETTLED = "Settled"
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def fleet(cluster: None) -> Iterator[Release]:
    """A timed fleet with a controller."""
    kubectl("apply", f"--filename={ROOT / 'deploy/controller/worker_pool.yaml'}")
    kubectl("wait", "--for=condition=Established", "crd/workerpools.baton.dev", "--timeout=30s")
    controller = {"controller": {"enabled": True, "resources": SMALL}}
    with release("controlled", merged(TIMED, controller)) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the pool; `said` has to be in its status on the way to `replicas` workers of an image."""

    make: Callable[[Release], None]
    replicas: int
    said: str


def roll_out(fleet: Release) -> None:
    fleet.upgrade(images(FIRST), {"pools": {"decode": {"image": {"tag": SECOND}}}}, wait=False)


def grow(fleet: Release) -> None:
    fleet.kubectl("scale", f"workerpool/{POOL}", f"--replicas={MANY}")


def shrink(fleet: Release) -> None:
    fleet.kubectl("scale", f"workerpool/{POOL}", f"--replicas={FEW}")


CHANGES = (
    Change(roll_out, FEW, r"RollingOut: \d of 2 workers are new; waits for .*baton-decode-\S+ to hand over"),
    Change(
        grow, MANY, r"Scaling: \d pods shall become 8; waits for |Unsettled: waits for routers to route to "
    ),
    Change(shrink, FEW, r"Scaling: \d pods shall become 2; waits for .*baton-decode-\S+ to hand over"),
)


def statuses(fleet: Release, change: Callable[[Release], None]) -> list[str]:
    """Make a change, and return what the pool's status says until it is settled again."""
    watch = subprocess.Popen(
        [*KUBECTL, f"--namespace={fleet.namespace}", "get", f"workerpool/{POOL}", "--watch",
         "--output-watch-events", "--output=json"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    patience = threading.Timer(PATIENCE_S, watch.kill)
    patience.start()
    said: list[str] = []
    with watch:
        try:
            assert watch.stdout is not None
            for event in events(watch.stdout):
                (ready,) = event["object"]["status"]["conditions"]
                said.append(f"{ready['reason']}: {ready['message']}")
                if len(said) == 1:
                    change(fleet)
                elif said[-1].startswith(SETTLED) and not said[-2].startswith(SETTLED):
                    return said
        finally:
            patience.cancel()
            watch.kill()
    raise TimeoutError(f"the pool is not settled within {PATIENCE_S:.0f} s: {said}")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.make.__name__)
async def test_streams_are_the_same(fleet: Release, expected: Expected, change: Change) -> None:
    before = {pod.name: pod for pod in fleet.pods("worker", "decode")}
    began_s, said = time.time(), list[str]()

    async def struck() -> None:
        said.extend(await asyncio.to_thread(statuses, fleet, change.make))

    streams = await under(fleet.doors(), struck)
    lasted_s = time.time() - began_s
    sys.stderr.write(f"{change.make.__name__}: {streams}, {lasted_s:.0f} s in all, {len(said)} statuses\n")
    streams.check(expected)
    assert any(re.search(change.said, status) for status in said), said
    fleet.wait_until_rolled_out()
    now = {pod.name: pod for pod in fleet.pods("worker", "decode")}
    assert len(now) == change.replicas
    assert {pod.image for pod in now.values()} == {f"baton-worker:{SECOND}"}
    ended = exits(began_s)
    codes = [ended[id_][0] for name in set(before) - set(now) for id_ in before[name].containers]
    assert not any(codes), "a worker was killed before it had drained"
