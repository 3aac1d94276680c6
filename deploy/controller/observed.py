"""A worker pool as the controller sees it: what the API server says, and what routers say."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Standing(enum.Enum):
    """The condition `baton.dev/in-service` of a pod.

    IN_SERVICE   True: the pool counts on the pod
    OUT          not set, or False: it has not joined yet, or routers no longer route to it
    RETIRING     False: it is to leave, and the next one that its Deployment deletes
    """

    IN_SERVICE = "Routable"
    OUT = "NotRoutable"
    RETIRING = "Retiring"


@dataclass(frozen=True, slots=True)
class Pool:
    """The wish: `replicas` workers in the Deployment."""

    name: str
    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Deployment of workers.

    revision    the pod-template-hash of its newest template; "" until its own controller has seen the last
                change of its spec
    max_unavailable   pods of `replicas` that a rollout may go without
    gated       its template has the readiness gate
    rolls       its strategy is RollingUpdate
    """

    replicas: int
    revision: str
    max_unavailable: int = 0
    gated: bool = True
    rolls: bool = True
    selector: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the Deployment. Its name is the name of its worker.

    terminating   it is being deleted
    overdue       it is being deleted, and its grace period is over
    trouble       what keeps its container from running, in the words of the container or the kubelet
    foreign       its worker ended because the fleet serves another model
    """

    name: str
    revision: str
    standing: Standing = Standing.OUT
    ready: bool = False
    gated: bool = True
    terminating: bool = False
    overdue: bool = False
    trouble: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as a router lists it. `tokens` are those whose KV a drain moves or computes again."""

    draining: bool = False
    tokens: int = 0
    cached_blocks: int = 0


@dataclass(frozen=True, slots=True)
class RouterView:
    """The workers that one router lists. `knows_all` is False while it may not have found all workers yet."""

    address: str
    workers: Mapping[str, Worker]
    fingerprint: str = ""
    knows_all: bool = True


@dataclass(frozen=True, slots=True)
class Fleet:
    """The views of all routers that respond; `silent` has an error for each of the others."""

    views: tuple[RouterView, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def informed(self) -> tuple[RouterView, ...]:
        """The views that say who is missing as well."""
        return tuple(view for view in self.views if view.knows_all)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(sorted({view.fingerprint for view in self.views} - {""}))

    def routes_to(self, name: str) -> bool:
        """Return whether every informed router gives this worker new work."""
        workers = [view.workers.get(name) for view in self.informed]
        return bool(workers) and all(worker is not None and not worker.draining for worker in workers)

    def lists(self, name: str) -> bool:
        """Return whether any router is connected to this worker."""
        return any(name in view.workers for view in self.views)

    def gives_work(self, name: str) -> bool:
        """Return whether any router gives this worker new work."""
        workers = [view.workers.get(name) for view in self.views]
        return any(worker is not None and not worker.draining for worker in workers)

    def drain_cost(self, name: str) -> tuple[int, int]:
        """Return what a drain moves: tokens, then the cached blocks that are lost. (0, 0) if not listed."""
        workers = [view.workers[name] for view in self.views if name in view.workers]
        return max(((worker.tokens, worker.cached_blocks) for worker in workers), default=(0, 0))


@dataclass(frozen=True, slots=True)
class Seen:
    """One pool at one moment. `shared` are other pools that name the same Deployment."""

    pool: Pool
    deployment: Deployment | None
    pods: tuple[Pod, ...] = ()
    fleet: Fleet = field(default_factory=Fleet)
    shared: tuple[str, ...] = ()

    @property
    def live(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if not pod.terminating)

    @property
    def leaving(self) -> tuple[Pod, ...]:
        """Pods that are being deleted and whose workers some router still lists."""
        return tuple(pod for pod in self.pods if pod.terminating and self.fleet.lists(pod.name))
