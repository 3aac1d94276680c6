"""A model of a cluster: a Deployment and its ReplicaSets, kubelets, workers and routers, one move at a time.

It moves as Kubernetes does, in whichever order a test draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from deploy.controller.decide import DrainWorker, SetReplicas, SetStanding, decide
from deploy.controller.observed import Deployment, Fleet, Pod, Pool, RouterView, Seen, Standing, Worker
from deploy.controller.report import Report, report

STARTS_AFTER = 2
"""Moves of a worker until routers can find it."""


@dataclass
class ModelPod:
    name: str
    revision: str
    standing: Standing = Standing.OUT
    ready: bool = False
    terminating: bool = False
    starts_in: int = STARTS_AFTER
    tokens: int = 0
    draining: bool = False

    @property
    def serves(self) -> bool:
        return self.starts_in == 0 and not self.draining

    @property
    def has_ended(self) -> bool:
        return self.terminating and self.draining and self.tokens == 0


@dataclass
class Model:
    """`wanted` are the pods that each ReplicaSet shall have, by revision."""

    replicas: int
    target: int
    max_surge: int = 1
    max_unavailable: int = 0
    revision: str = "1"
    broken: set[str] = field(default_factory=set)
    pods: dict[str, ModelPod] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    views: list[dict[str, Worker]] = field(default_factory=lambda: [{}, {}])
    deleted: list[tuple[ModelPod, bool]] = field(default_factory=list)
    """The pods that ReplicaSets deleted, with whether they were chosen: retiring, or served nothing."""
    born: int = 0

    @classmethod
    def settled(
        cls, replicas: int, target: int | None = None, *, max_surge: int = 1, max_unavailable: int = 0
    ) -> Model:
        """Return a pool at rest: every worker routable and in service."""
        model = cls(replicas, replicas if target is None else target, max_surge, max_unavailable)
        model.wanted = {"1": replicas}
        for _ in range(replicas):
            pod = model._create("1")
            pod.standing, pod.ready, pod.starts_in, pod.tokens = Standing.IN_SERVICE, True, 0, model.born % 4
        for index in range(len(model.views)):
            model.look(index)
        return model

    def live(self, revision: str | None = None) -> list[ModelPod]:
        return [
            pod
            for pod in self.pods.values()
            if not pod.terminating and (revision is None or pod.revision == revision)
        ]

    def serving(self) -> int:
        """Return the workers that take new work."""
        return sum(pod.serves for pod in self.pods.values())

    def leaving(self) -> int:
        """Return the workers that were deleted while they served, and have not ended."""
        return sum(pod.terminating and not pod.has_ended and pod.starts_in == 0 for pod in self.pods.values())

    # What the parts of a cluster do.

    def moves(self) -> list[Callable[[], None]]:
        parts: list[Callable[[], None]] = [self.control, self.deploy]
        parts += [partial(self.replicate, revision) for revision in list(self.wanted)]
        parts += [partial(self.live_on, name) for name in list(self.pods)]
        return parts + [partial(self.look, index) for index in range(len(self.views))]

    def control(self) -> None:
        """Let the controller take its steps."""
        for step in decide(self.seen()):
            match step:
                case SetStanding():
                    self.pods[step.pod].standing = step.standing
                case SetReplicas():
                    self.replicas = step.replicas
                case DrainWorker():
                    self.pods[step.worker].draining = True

    def deploy(self) -> None:
        """Scale the ReplicaSets as the controller of Deployments does."""
        self.wanted.setdefault(self.revision, 0)
        old = [revision for revision in self.wanted if revision != self.revision]
        total = sum(self.wanted.values())
        if not any(self.wanted[revision] for revision in old):
            self.wanted[self.revision] = self.replicas
            return
        room = self.replicas + self.max_surge - total
        wanted_new = max(0, min(self.replicas - self.wanted[self.revision], room))
        self.wanted[self.revision] += wanted_new
        if wanted_new:
            return
        least = self.replicas - self.max_unavailable
        new_not_ready = self.wanted[self.revision] - sum(pod.ready for pod in self.live(self.revision))
        removable = total - least - new_not_ready
        for revision in old:  # those that are not ready first
            not_ready = self.wanted[revision] - sum(pod.ready for pod in self.live(revision))
            count = max(0, min(not_ready, removable))
            self.wanted[revision] -= count
            removable -= count
        spare = sum(pod.ready for pod in self.live()) - least
        for revision in old:
            count = max(0, min(self.wanted[revision], spare))
            self.wanted[revision] -= count
            spare -= count

    def replicate(self, revision: str) -> None:
        """Create or delete pods of one ReplicaSet; it deletes those that are not ready first."""
        pods = sorted(self.live(revision), key=lambda pod: (pod.ready, -pod.tokens))
        for _ in range(self.wanted[revision] - len(pods)):
            self._create(revision)
        for pod in pods[: max(0, len(pods) - self.wanted[revision])]:
            chosen = pod.standing is Standing.RETIRING or not pod.serves
            self.deleted.append((pod, chosen))
            pod.terminating = True
            if pod.starts_in:
                del self.pods[pod.name]

    def live_on(self, name: str) -> None:
        """Let a pod's worker and kubelet go on by one move."""
        pod = self.pods.get(name)
        if pod is None:
            return
        if pod.has_ended:
            if not any(name in view for view in self.views):
                del self.pods[name]
        elif pod.terminating or pod.draining:
            pod.draining, pod.tokens = True, max(0, pod.tokens - 1)
        elif pod.starts_in and pod.revision not in self.broken:
            pod.starts_in -= 1
        else:
            pod.ready = pod.standing is Standing.IN_SERVICE and pod.starts_in == 0

    def look(self, index: int) -> None:
        """Bring one router's list of workers up to date."""
        self.views[index] = {
            pod.name: Worker(pod.draining, pod.tokens)
            for pod in self.pods.values()
            if pod.starts_in == 0 and not pod.has_ended
        }

    def run(self, rng: random.Random, rounds: int) -> Iterator[None]:
        """Let every part move once a round, in any order, until all is done; yield after each move."""
        for _ in range(rounds):
            if self.is_done():
                return
            moves = self.moves()
            rng.shuffle(moves)
            for move in moves:
                move()
                yield

    def is_done(self) -> bool:
        """Return whether the pool is as it was wanted, whatever the controller says.

        A pod whose standing has just changed is ready until its kubelet notices.
        """
        live = self.live(self.revision)
        if self.revision not in self.wanted:
            return False
        has_settled = all(pod.ready and pod.standing is Standing.IN_SERVICE for pod in live)
        return len(live) == len(self.pods) == self.target and has_settled

    # What the controller sees.

    def seen(self) -> Seen:
        deployment = Deployment(self.replicas, self.revision, self.max_unavailable)
        if self.revision not in self.wanted:
            deployment = Deployment(self.replicas, "", self.max_unavailable)
        pods = tuple(
            Pod(pod.name, pod.revision, pod.standing, pod.ready, terminating=pod.terminating)
            for pod in self.pods.values()
        )
        views = tuple(RouterView(f"router-{index}", view, "weights") for index, view in enumerate(self.views))
        return Seen(Pool("pool", "workers", self.target), deployment, pods, Fleet(views))

    def report(self) -> Report:
        return report(self.seen())

    def _create(self, revision: str) -> ModelPod:
        self.born += 1
        pod = ModelPod(f"workers-{revision}-{self.born}", revision)
        self.pods[pod.name] = pod
        return pod
