"""The objects of one namespace, kept up to date from watches and from the answers to writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from deploy.controller.observed import Deployment, Fleet, Pod, Pool, Seen
from deploy.controller.reading import (
    Body,
    DeploymentRecord,
    PodRecord,
    SetRecord,
    deployment_of,
    pod_of,
    pool_of,
    set_of,
)

Record = TypeVar("Record")


@dataclass(slots=True)
class Kept(Generic[Record]):
    """An object as it was last read. `touched` is when that was."""

    record: Record
    uid: str
    version: int
    generation: int
    touched: float


@dataclass(slots=True)
class Kind(Generic[Record]):
    """The objects of one kind by name. `read` converts one."""

    read: Callable[[Body], Record]
    kept: dict[str, Kept[Record]] = field(default_factory=dict)

    def put(self, body: Body, now: float) -> None:
        """Take in an object, unless a newer version of it is there."""
        meta = body["metadata"]
        version, old = int(meta["resourceVersion"]), self.kept.get(meta["name"])
        if old is None or old.uid != meta["uid"] or old.version <= version:
            generation = meta.get("generation", 0)
            self.kept[meta["name"]] = Kept(self.read(body), meta["uid"], version, generation, now)

    def drop(self, name: str, uid: str) -> None:
        """Forget an object that was deleted, but not one of the same name that followed it."""
        if name in self.kept and self.kept[name].uid == uid:
            del self.kept[name]

    def keep_only(self, uids: Collection[str], listed_at: float) -> None:
        """Forget what a listing does not have: a watch that broke off does not say what was deleted."""
        for name, entry in list(self.kept.items()):
            if entry.uid not in uids and entry.touched < listed_at:
                del self.kept[name]


class Cluster:
    """The pools of a namespace, and what they consist of."""

    def __init__(self) -> None:
        self.pools: Kind[Pool] = Kind(pool_of)
        self.deployments: Kind[DeploymentRecord] = Kind(deployment_of)
        self.sets: Kind[SetRecord] = Kind(set_of)
        self.pods: Kind[PodRecord] = Kind(pod_of)
        self._leaving_since: dict[str, float] = {}

    def scaled(self, name: str, replicas: int, version: int) -> None:
        """Take in a scaling that the API server has confirmed, before the watch tells of it."""
        entry = self.deployments.kept.get(name)
        if entry is not None and entry.version < version:
            deployment = replace(entry.record.deployment, replicas=replicas)
            entry.record, entry.version = DeploymentRecord(deployment, revision=""), version

    def see(self, fleet: Fleet, now: float) -> Iterator[Seen]:
        """Return each pool with its Deployment and pods."""
        pods = self._pods_by_deployment(now)
        users = Counter(entry.record.deployment for entry in self.pools.kept.values())
        for entry in list(self.pools.kept.values()):
            pool = entry.record
            shared = self._others_than(pool) if users[pool.deployment] > 1 else ()
            yield Seen(pool, self._deployment(pool.deployment), tuple(pods[pool.deployment]), fleet, shared)

    def _others_than(self, pool: Pool) -> tuple[str, ...]:
        records = (entry.record for entry in self.pools.kept.values())
        return tuple(
            sorted(other.name for other in records if other.deployment == pool.deployment and other != pool)
        )

    def _deployment(self, name: str) -> Deployment | None:
        """Return it with the hash of its newest template, which the ReplicaSet of its revision has."""
        entry = self.deployments.kept.get(name)
        if entry is None:
            return None
        record = entry.record
        hashes = (
            replica_set.record.template_hash
            for replica_set in self.sets.kept.values()
            if replica_set.record.deployment == name and replica_set.record.revision == record.revision != ""
        )
        return replace(record.deployment, revision=next(hashes, ""))

    def _pods_by_deployment(self, now: float) -> dict[str, list[Pod]]:
        pods: dict[str, list[Pod]] = defaultdict(list)
        leaving: dict[str, float] = {}
        for entry in self.pods.kept.values():
            owner = self.sets.kept.get(entry.record.owner)
            pod = entry.record.pod
            if entry.record.grace_s is not None:
                since = leaving[entry.uid] = self._leaving_since.get(entry.uid, now)
                pod = replace(pod, overdue=now - since > entry.record.grace_s)
            if owner is not None:
                pods[owner.record.deployment].append(pod)
        self._leaving_since = leaving
        return pods
