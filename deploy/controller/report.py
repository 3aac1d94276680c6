"""The status of a pool: whether it is as it shall be, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deploy.controller.observed import Deployment, Pod, Seen, Standing
from deploy.controller.obstacles import Obstacle, find_obstacle

NAMED = 3
"""Pods that a message names; of the others it says how many there are."""


@dataclass(frozen=True, slots=True)
class Report:
    """The status of a WorkerPool.

    reason     SETTLED if the pool is ready, else one word for what it does or what holds it up
    message    what it waits for
    replicas   pods that are not being deleted
    routable   those of them that every router routes to
    """

    reason: str
    message: str
    replicas: int
    routable: int
    selector: str

    @property
    def is_ready(self) -> bool:
        return self.reason == SETTLED


SETTLED = "Settled"


def report(seen: Seen) -> Report:
    """Return the status: SETTLED if routers route to every worker and list none that shall be gone."""
    found = find_obstacle(seen) or _waits(seen) or Obstacle(SETTLED, "routers route to all workers")
    selector = seen.deployment.selector if seen.deployment else ""
    routable = sum(seen.fleet.routes_to(pod.name) for pod in seen.live)
    return Report(found.reason, found.message, len(seen.live), routable, selector)


def _waits(seen: Seen) -> Obstacle | None:
    deployment = seen.deployment
    assert deployment is not None
    if not seen.fleet.informed:
        why = "; ".join(seen.fleet.silent) or "those that respond have just started"
        return Obstacle("NoRouter", f"waits for a router that knows the workers: {why}")
    if not deployment.revision:
        return Obstacle("Updating", f"waits for the controller of Deployment {seen.pool.deployment}")
    foreign = [pod for pod in seen.live if pod.foreign]
    if foreign:
        return Obstacle("MixedFingerprints", f"the fleet serves another model than {_named(foreign)}")
    waits = "; ".join(_each_wait(seen, deployment))
    old = [pod for pod in seen.live if pod.revision != deployment.revision]
    if old:
        done = f"{len(seen.live) - len(old)} of {deployment.replicas} workers are new"
        return Obstacle("RollingOut", f"{done}; waits for {waits or f'{_named(old)} to be replaced'}")
    if deployment.replicas != seen.pool.replicas or len(seen.live) != seen.pool.replicas:
        count = f"{len(seen.live)} pods shall become {seen.pool.replicas}"
        return Obstacle("Scaling", f"{count}; waits for {waits or f'Deployment {seen.pool.deployment}'}")
    return Obstacle("Unsettled", f"waits for {waits}") if waits else None


def _each_wait(seen: Seen, deployment: Deployment) -> Iterator[str]:
    draining = [pod for pod in seen.leaving if not pod.overdue]
    if draining:
        yield f"{_named(draining)} to hand over"
    overdue = [pod for pod in seen.leaving if pod.overdue]
    if overdue:
        yield f"routers to lose {_named(overdue)}, beyond the grace period"
    routed = [pod for pod in seen.live if seen.fleet.routes_to(pod.name)]
    if len(routed) < len(seen.live):
        names = {pod.name for pod in routed}
        yield f"routers to route to {_named(pod for pod in seen.live if pod.name not in names)}"
    retiring = [pod for pod in routed if pod.standing is Standing.RETIRING]
    if retiring:
        yield f"{_named(retiring)} to be deleted"
    unready = [pod for pod in routed if pod.standing is Standing.IN_SERVICE and not pod.ready]
    if unready:
        yield f"{_named(unready)} to become ready"
    held = [pod for pod in routed if pod.standing is Standing.OUT and pod.revision == deployment.revision]
    if held:
        yield f"a place for {_named(held)}"


def _named(pods: Iterable[Pod]) -> str:
    known: Sequence[Pod] = sorted(pods, key=lambda pod: pod.name)
    names = [f"{pod.name} ({pod.trouble})" if pod.trouble else pod.name for pod in known[:NAMED]]
    more = len(known) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
