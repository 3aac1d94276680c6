"""Nodes and a fleet without computers: pods run when they are told to, and two routers list their workers.

The kubelet is a watch of pods that moves their status. Workers start, become routable, drain and end as their
pods do, or as a test holds them up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from kubernetes_asyncio.client import ApiClient, ApiException, CoreV1Api

from baton.operators.v1 import fleet_pb2
from baton.worker.v1 import worker_pb2
from deploy.controller.obstacles import GATE
from tests.baton.scripted_service import ScriptedRouter

Body = dict[str, Any]


@dataclass
class FakeWorker:
    """A worker by its pod's name. `tokens` is what a drain would move; `drain_held` keeps it from ending."""

    image: str
    tokens: int = 0
    draining: bool = False


@dataclass
class Fleet:
    """The workers that run. `unroutable` images never show up at routers; workers in `held` never end."""

    workers: dict[str, FakeWorker] = field(default_factory=dict)
    unroutable: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    """Pods whose worker does not hear SIGTERM."""
    fingerprints: list[str] = field(default_factory=lambda: ["weights", "weights"])
    uptime_s: float = 60.0

    def snapshot(self) -> fleet_pb2.WatchResponse:
        """Return what both routers list."""
        workers = [
            fleet_pb2.WorkerStatus(
                worker_id=name,
                connected=True,
                role=worker_pb2.WORKER_ROLE_DECODE,
                load=worker_pb2.WorkerLoad(draining=worker.draining, context_tokens=worker.tokens),
            )
            for name, worker in list(self.workers.items())
            if worker.image not in self.unroutable
        ]
        return fleet_pb2.WatchResponse(router_id="r", uptime_s=self.uptime_s, workers=workers)


@contextlib.asynccontextmanager
async def routers(fleet: Fleet) -> AsyncIterator[list[ScriptedRouter]]:
    """Yield two routers that list the fleet."""
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for fingerprint in fleet.fingerprints:
            router = ScriptedRouter(Describe=fleet_pb2.DescribeResponse(fingerprint=fingerprint))
            router.live = fleet.snapshot
            started.append(await stack.enter_async_context(router))
        yield started


class Kubelet:
    """Runs the pods of one namespace on a node that is only a name."""

    def __init__(self, api: ApiClient, namespace: str, fleet: Fleet) -> None:
        self._core: Any = CoreV1Api(api)  # called for JSON, not for its own types
        self._namespace = namespace
        self._fleet = fleet
        self.pods: dict[str, Body] = {}

    async def run(self) -> None:
        """Move pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                for name in list(self.pods):
                    with contextlib.suppress(ApiException):  # it is gone, or has changed
                        await self._move(name, self.pods[name])
                await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        answer = await self._core.list_namespaced_pod(
            self._namespace, watch=True, resource_version="0", _preload_content=False, _request_timeout=0
        )
        async with answer:
            async for line in answer.content:
                event = json.loads(line)
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    self.pods.pop(name, None)
                    self._fleet.workers.pop(name, None)
                else:
                    self.pods[name] = event["object"]

    async def _move(self, name: str, pod: Body) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            await self._end(name)
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
            body = {"metadata": {"name": name}, "target": target}
            await self._core.create_namespaced_binding(self._namespace, body, _preload_content=False)
        else:
            worker = FakeWorker(
                pod["spec"]["containers"][0]["image"], tokens=100 * (len(self._fleet.workers) + 1)
            )
            self._fleet.workers.setdefault(name, worker)
            await self._set_status(name, pod)

    async def _end(self, name: str) -> None:
        worker = self._fleet.workers.get(name)
        if worker is not None and name not in self._fleet.deaf:
            worker.draining = True
        if worker is None or (worker.draining and name not in self._fleet.held):
            self._fleet.workers.pop(name, None)
            await self._core.delete_namespaced_pod(
                name, self._namespace, grace_period_seconds=0, _preload_content=False
            )

    async def _set_status(self, name: str, pod: Body) -> None:
        conditions = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", ())}
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", ())]
        ready = str(all(conditions.get(gate) == "True" for gate in gates))
        if pod["status"].get("phase") == "Running" and conditions.get("Ready") == ready:
            return
        moved = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": ready}]
        body = {"status": {"phase": "Running", "conditions": moved}}
        self.pods[name] = json.loads(
            await (
                await self._core.patch_namespaced_pod_status(
                    name, self._namespace, body, _preload_content=False
                )
            ).read()
        )


def deployment(name: str, replicas: int, image: str = "v1", *, gated: bool = True, surge: int = 1) -> Body:
    """Return a Deployment of workers as the chart writes it, as far as the controller is concerned."""
    labels = {"app": name}
    spec: Body = {
        "containers": [{"name": "worker", "image": image}],
        "readinessGates": [{"conditionType": GATE}] if gated else [],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def pool(name: str, replicas: int) -> Body:
    """Return the WorkerPool of a Deployment of the same name."""
    return {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": name},
        "spec": {"deployment": name, "replicas": replicas},
    }
