"""Objects as the API server sends them, and what is kept of them."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.controller.cluster import Cluster
from deploy.controller.observed import Fleet, Standing
from deploy.controller.obstacles import GATE
from deploy.controller.reading import deployment_of, pod_of

Body = dict[str, Any]


def pod(name: str = "a", version: int = 1, uid: str = "u", **meta: Any) -> Body:
    owner = {"kind": "ReplicaSet", "name": "workers-1", "controller": True}
    known = {"name": name, "uid": uid, "resourceVersion": str(version), "ownerReferences": [owner]}
    gates = [{"conditionType": GATE}]
    return {"metadata": known | meta, "spec": {"readinessGates": gates}, "status": {}}


def workers(replicas: int = 4, observed: int = 1, **rolling: Any) -> Body:
    meta = {"name": "workers", "uid": "d", "resourceVersion": "1", "generation": 1}
    meta["annotations"] = {"deployment.kubernetes.io/revision": "7"}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    spec = {"replicas": replicas, "strategy": strategy, "template": {"spec": {}}}
    return {"metadata": meta, "spec": spec, "status": {"observedGeneration": observed}}


@pytest.mark.parametrize(
    ("condition", "standing"),
    [
        ({"status": "True", "reason": "Routable"}, Standing.IN_SERVICE),
        ({"status": "False", "reason": "NotRoutable"}, Standing.OUT),
        ({"status": "False", "reason": "Retiring"}, Standing.RETIRING),
    ],
)
def test_the_condition_of_the_gate_is_the_standing(condition: Body, standing: Standing) -> None:
    body = pod()
    assert pod_of(body).pod.standing is Standing.OUT
    body["status"] = {"conditions": [{"type": GATE, **condition}]}
    assert pod_of(body).pod.standing is standing


def test_the_last_words_of_a_container_are_its_trouble() -> None:
    ended = {"exitCode": 5, "message": "fingerprint is x;\n  accepted: y"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    body = pod()
    body["status"] = {"containerStatuses": [{"state": waiting, "lastState": {"terminated": ended}}]}
    assert pod_of(body).pod.trouble == "fingerprint is x; accepted: y"
    assert pod_of(body).pod.foreign
    body["status"]["containerStatuses"][0]["state"] = {"running": {}}
    assert not pod_of(body).pod.foreign


def test_so_are_those_of_an_init_container_that_failed() -> None:
    ended = {"exitCode": 4, "message": "model a/b@c: no space is left"}
    failed = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    done = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    waiting = {"state": {"waiting": {"reason": "PodInitializing"}}}
    body = pod()
    body["status"] = {"initContainerStatuses": [done, failed], "containerStatuses": [waiting]}
    assert pod_of(body).pod.trouble == "model a/b@c: no space is left"
    body["status"]["initContainerStatuses"] = [done, {"state": {"running": {}}}]
    assert pod_of(body).pod.trouble == "PodInitializing"


@pytest.mark.parametrize(
    ("rolling", "pods"),
    [
        ({"maxUnavailable": 0, "maxSurge": 1}, 0),
        ({"maxUnavailable": 2}, 2),
        ({}, 2),
        ({"maxUnavailable": "10%", "maxSurge": "10%"}, 0),
        ({"maxUnavailable": "10%", "maxSurge": 0}, 1),
    ],
)
def test_pods_that_may_be_missing_are_rounded_as_kubernetes_does(rolling: Body, pods: int) -> None:
    assert deployment_of(workers(9, **rolling)).deployment.max_unavailable == pods


def test_a_revision_counts_once_its_controller_has_seen_it() -> None:
    assert deployment_of(workers(observed=1)).revision == "7"
    assert deployment_of(workers(observed=0)).revision == ""


def test_late_events_neither_undo_nor_remove_anything_newer() -> None:
    cluster = Cluster()
    cluster.pods.put(pod(version=5, deletionTimestamp="t", deletionGracePeriodSeconds=30), 0.0)
    cluster.pods.put(pod(version=4), 1.0)
    assert cluster.pods.kept["a"].record.pod.terminating
    cluster.pods.put(pod(version=6, uid="v"), 2.0)
    cluster.pods.drop("a", "u")
    assert not cluster.pods.kept["a"].record.pod.terminating


def test_a_listing_removes_what_it_does_not_have_but_nothing_newer() -> None:
    cluster = Cluster()
    cluster.pods.put(pod("old", uid="old"), 0.0)
    cluster.pods.put(pod("new", uid="new"), 10.0)
    cluster.pods.keep_only([], listed_at=5.0)
    assert set(cluster.pods.kept) == {"new"}


def test_a_pod_is_overdue_when_its_grace_period_is_over() -> None:
    cluster = Cluster()
    owner = {"kind": "Deployment", "name": "workers", "controller": True}
    meta = {"name": "workers-1", "uid": "s", "resourceVersion": "1", "ownerReferences": [owner]}
    pool = {"name": "pool", "uid": "p", "resourceVersion": "1"}
    cluster.sets.put({"metadata": meta}, 0.0)
    cluster.deployments.put(workers(), 0.0)
    cluster.pools.put({"metadata": pool, "spec": {"deployment": "workers", "replicas": 4}}, 0.0)
    cluster.pods.put(pod(deletionTimestamp="t", deletionGracePeriodSeconds=30), 0.0)
    for now, overdue in ((0.0, False), (30.0, False), (31.0, True)):
        (seen,) = cluster.see(Fleet(), now)
        assert [found.overdue for found in seen.pods] == [overdue]
