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


def report(view: Seen) -> Report:
    """Return the status: SETTLED if routers route to every worker and list none that shall be gone."""
    obstacle = find_obstacle(view) or _waits(view) or Obstacle(SETTLED, "routers route to all workers")
    selector = view.deployment.selector if view.deployment else ""
    routable = sum(view.fleet.routes_to(pod.name) for pod in view.live)
    return Report(obstacle.reason, obstacle.message, len(view.live), routable, selector)


def _waits(view: Seen) -> Obstacle | None:
    deployment = view.deployment
    assert deployment is not None
    if not view.fleet.informed:
        why = "; ".join(view.fleet.silent) or "those that respond have just started"
        return Obstacle("NoRouter", f"waits for a router that knows the workers: {why}")
    if not deployment.revision:
        return Obstacle("Updating", f"waits for the controller of Deployment {view.pool.deployment}")
    foreign = [pod for pod in view.live if pod.foreign]
    if foreign:
        return Obstacle("MixedFingerprints", f"the fleet serves another model than {_named(foreign)}")
    waits = "; ".join(_each_wait(view, deployment))
    old = [pod for pod in view.live if pod.revision != deployment.revision]
    if old:
        done = f"{len(view.live) - len(old)} of {deployment.replicas} workers are new"
        return Obstacle("RollingOut", f"{done}; waits for {waits or f'{_named(old)} to be replaced'}")
    if deployment.replicas != view.pool.replicas or len(view.live) != view.pool.replicas:
        count = f"{len(view.live)} pods shall become {view.pool.replicas}"
        return Obstacle("Scaling", f"{count}; waits for {waits or f'Deployment {view.pool.deployment}'}")
    return Obstacle("Unsettled", f"waits for {waits}") if waits else None


def _each_wait(view: Seen, deployment: Deployment) -> Iterator[str]:
    draining = [pod for pod in view.leaving if not pod.overdue]
    if draining:
        yield f"{_named(draining)} to hand over"
    overdue = [pod for pod in view.leaving if pod.overdue]
    if overdue:
        yield f"routers to lose {_named(overdue)}, beyond the grace period"
    routed = [pod for pod in view.live if view.fleet.routes_to(pod.name)]
    if len(routed) < len(view.live):
        names = {pod.name for pod in routed}
        yield f"routers to route to {_named(pod for pod in view.live if pod.name not in names)}"
    retiring = [pod for pod in routed if pod.standing is Standing.RETIRING]
    if retiring:
        yield f"{_named(retiring)} to be deleted"
    unready = [pod for pod in routed if pod.standing is Standing.IN_SERVICE and not pod.ready]
    if unready:
        yield f"{_named(unready)} to become ready"
    unplaced = [pod for pod in routed if pod.standing is Standing.OUT and pod.revision == deployment.revision]
    if unplaced:
        yield f"a place for {_named(unplaced)}"


def _named(pods: Iterable[Pod]) -> str:
    ordered: Sequence[Pod] = sorted(pods, key=lambda pod: pod.name)
    names = [f"{pod.name} ({pod.trouble})" if pod.trouble else pod.name for pod in ordered[:NAMED]]
    more = len(ordered) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
