"""The next steps of a pool, decided from what is seen.

A rollout, with `ceiling` = replicas - maxUnavailable. While pods of an older revision are left, at most
`ceiling` pods are in service, so each new pod needs the place of an old one:

    new pod routable ─▶ cheapest old pod RETIRING ─▶ not ready ─▶ new pod IN_SERVICE ─▶ the Deployment deletes
                                                                                        the one not ready

A scale-down:

    cheapest pod RETIRING ─▶ not ready ─▶ replicas - 1 ─▶ the Deployment deletes the one not ready

Among the pods that it may delete, a ReplicaSet takes those that are not ready first. A worker that leaves
drains by itself on SIGTERM; it counts as leaving until no router lists it or its grace period is over. One
worker in ten may be retiring or leaving at a time, and always one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deploy.controller.observed import Deployment, Pod, Seen, Standing
from deploy.controller.obstacles import find_obstacle

AT_ONCE = 10
"""One worker in so many may be on its way out."""


@dataclass(frozen=True, slots=True)
class SetStanding:
    """Sets the condition of a pod."""

    pod: str
    standing: Standing


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Scales the Deployment."""

    replicas: int


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Has routers drain a worker whose pod is being deleted: its kubelet may be out of reach."""

    worker: str


Step = SetStanding | SetReplicas | DrainWorker


def decide(view: Seen) -> tuple[Step, ...]:
    """Return the steps to take now. Repeated on the same view, they change nothing more."""
    deployment = view.deployment
    if deployment is None or find_obstacle(view) is not None:
        return ()
    steps: list[Step] = [DrainWorker(pod.name) for pod in view.leaving if view.fleet.gives_work(pod.name)]
    if view.pool.replicas > deployment.replicas:
        steps.append(SetReplicas(view.pool.replicas))
    elif deployment.revision and view.fleet.informed:
        lost = [pod for pod in view.live if _is_lost(view, pod)]
        steps += [SetStanding(pod.name, Standing.OUT) for pod in lost if pod.gated]
        is_rolling = any(pod.revision != deployment.revision for pod in view.live)
        steps += _roll(view, deployment) if is_rolling else _scale(view, deployment)
    return tuple(steps)


def _roll(view: Seen, deployment: Deployment) -> Iterator[Step]:
    """Let new pods join, each in the place of an old one."""
    serving = [pod for pod in view.live if pod.standing is Standing.IN_SERVICE and not _is_lost(view, pod)]
    free = deployment.replicas - deployment.max_unavailable - len(serving)
    old = [pod for pod in view.live if pod.revision != deployment.revision]
    newcomers = [pod for pod in _joinable(view, view.live) if pod.revision == deployment.revision]
    still_ready = sum(pod.standing is Standing.RETIRING and pod.ready and pod.gated for pod in old)
    yield from _join(newcomers[: max(0, free - still_ready)])
    yield from _join(list(_joinable(view, old))[: max(0, free - len(newcomers))])
    retiring = sum(pod.standing is Standing.RETIRING for pod in old)  # a current one comes back
    num_needed = min(_budget(view, deployment) - retiring, len(newcomers) - free)
    yield from _retire(view, (pod for pod in serving if pod.revision != deployment.revision), num_needed)


def _scale(view: Seen, deployment: Deployment) -> Iterator[Step]:
    """Let pods join, and make the pool smaller if it is too large."""
    live, surplus = view.live, max(0, deployment.replicas - view.pool.replicas)
    retiring = _cheapest_first(view, (pod for pod in live if pod.standing is Standing.RETIRING))
    leave = {pod.name for pod in retiring[: max(0, len(live) - view.pool.replicas)]}
    yield from _join(pod for pod in _joinable(view, live) if pod.name not in leave)
    if not surplus or len(live) > deployment.replicas:  # nothing to do, or the last step is not done yet
        return
    if len(live) < deployment.replicas:
        yield SetReplicas(max(view.pool.replicas, len(live)))
        return
    idle = [pod for pod in live if not pod.ready]
    works = {pod.name for pod in idle if view.fleet.gives_work(pod.name)}
    leavers = [pod for pod in idle if pod.standing is Standing.RETIRING or pod.name not in works]
    if leavers and len(leavers) == len(idle):  # else one that works, and was not chosen, could be taken
        yield SetReplicas(deployment.replicas - min(surplus, len(leavers)))
        return
    num_needed = min(_budget(view, deployment), surplus) - len(retiring)
    yield from _retire(view, (pod for pod in live if pod.standing is Standing.IN_SERVICE), num_needed)


def _is_lost(view: Seen, pod: Pod) -> bool:
    return pod.standing is Standing.IN_SERVICE and not view.fleet.lists(pod.name)


def _joinable(view: Seen, pods: Iterable[Pod]) -> Iterator[Pod]:
    return (pod for pod in pods if pod.standing is not Standing.IN_SERVICE and view.fleet.routes_to(pod.name))


def _budget(view: Seen, deployment: Deployment) -> int:
    """Return how many may be retiring now, beside those that leave."""
    leaving = sum(not pod.overdue for pod in view.leaving)
    return max(1, deployment.replicas // AT_ONCE) - leaving


def _cheapest_first(view: Seen, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods by what their drain costs; ReplicaSets take those that are not ready first anyway."""
    return sorted(pods, key=lambda pod: (pod.ready, view.fleet.drain_cost(pod.name), pod.name))


def _join(pods: Iterable[Pod]) -> Iterator[Step]:
    return (SetStanding(pod.name, Standing.IN_SERVICE) for pod in pods)


def _retire(view: Seen, pods: Iterable[Pod], count: int) -> Iterator[Step]:
    cheapest = _cheapest_first(view, pods)[: max(0, count)]
    return (SetStanding(pod.name, Standing.RETIRING) for pod in cheapest)
