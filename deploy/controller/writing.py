"""Reads and writes of the API server that are not watches."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kubernetes_asyncio.client import ApiClient, AppsV1Api, CoreV1Api, CustomObjectsApi

from deploy.controller.cluster import Cluster, Kind
from deploy.controller.decide import DrainWorker, SetReplicas, SetStanding, Step
from deploy.controller.observed import Standing
from deploy.controller.obstacles import GATE
from deploy.controller.report import Report

GROUP, VERSION, PLURAL = "baton.dev", "v1alpha1", "workerpools"
Drain = Callable[[str], Awaitable[None]]
PAGE = 500
"""Objects of one listing's page."""


class Writer:
    """Carries out steps, and takes what the API server answers into `cluster`."""

    def __init__(self, api: ApiClient, namespace: str, cluster: Cluster) -> None:
        self._core, self._apps, self._custom = CoreV1Api(api), AppsV1Api(api), CustomObjectsApi(api)
        self._namespace = namespace
        self._cluster = cluster

    async def list_all(self) -> None:
        """Read everything once. What was deleted while no watch ran is forgotten."""
        cluster, custom = self._cluster, self._custom
        await self._list(cluster.deployments, self._apps.list_namespaced_deployment)
        await self._list(cluster.sets, self._apps.list_namespaced_replica_set)
        await self._list(cluster.pods, self._core.list_namespaced_pod)
        list_pools = partial(custom.list_namespaced_custom_object, GROUP, VERSION, plural=PLURAL)
        await self._list(cluster.pools, list_pools)

    async def take(self, step: Step, deployment: str, drain: Drain) -> None:
        """Carry out one step of a pool."""
        match step:
            case SetStanding():
                await self._set_standing(step)
            case SetReplicas():
                scale = {"spec": {"replicas": step.replicas}}
                patch = self._apps.patch_namespaced_deployment_scale
                answer = await _json(patch(deployment, self._namespace, scale, _preload_content=False))
                version = int(answer["metadata"]["resourceVersion"])
                self._cluster.scaled(deployment, step.replicas, version)
            case DrainWorker():
                await drain(step.worker)

    async def write_status(self, pool: str, generation: int, report: Report) -> None:
        """Write the status of a pool; `generation` is that of the spec which the report is about."""
        condition = {
            "type": "Ready",
            "status": str(report.is_ready),
            "reason": report.reason,
            "message": report.message,
            "observedGeneration": generation,
        }
        status = {
            "observedGeneration": generation,
            "replicas": report.replicas,
            "routable": report.routable,
            "selector": report.selector,
            "conditions": [condition],
        }
        patch: Any = self._custom.patch_namespaced_custom_object_status  # its own types know no content type
        where = (GROUP, VERSION, self._namespace, PLURAL, pool)
        await patch(*where, {"status": status}, _content_type="application/merge-patch+json")

    async def _set_standing(self, step: SetStanding) -> None:
        condition = {
            "type": GATE,
            "status": str(step.standing is Standing.IN_SERVICE),
            "reason": step.standing.value,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        patch = partial(self._core.patch_namespaced_pod_status, step.pod, self._namespace)
        body = await _json(patch({"status": {"conditions": [condition]}}, _preload_content=False))
        self._cluster.pods.put(body, time.monotonic())

    async def _list(self, kind: Kind[Any], call: Callable[..., Awaitable[Any]]) -> None:
        listed_at = time.monotonic()
        uids: set[str] = set()
        more = ""
        while True:
            answer = call(namespace=self._namespace, limit=PAGE, _continue=more, _preload_content=False)
            page = await _json(answer)
            for body in page["items"]:
                kind.put(body, time.monotonic())
                uids.add(body["metadata"]["uid"])
            more = page["metadata"].get("continue", "")
            if not more:
                break
        kind.keep_only(uids, listed_at)


async def _json(answer: Awaitable[Any]) -> Any:
    """Return the body of a response as it came, without the client's own classes."""
    response = await answer
    return json.loads(await response.read())
