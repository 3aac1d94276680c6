"""A namespace with a fleet, its fake kubelet, two routers, and the controller as a process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from kubernetes_asyncio.client import ApiClient, CoreV1Api, CustomObjectsApi
from kubernetes_asyncio.config import new_client_from_config

from deploy.controller.writing import GROUP, PLURAL, VERSION
from tests.baton.scripted_service import ScriptedRouter
from tests.deploy.controller.control_plane import CONTROLLER, ControlPlane
from tests.deploy.controller.fake_nodes import Body, Fleet, Kubelet, routers
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT

RULES = ROOT / "deploy/helm/baton/files/controller-rules.yaml"
KIND = ROOT / "deploy/controller/worker_pool.yaml"
_numbers = itertools.count()


@dataclass
class Scene:
    """A namespace to act on. `pool`, `ready` and `live` ask the API server."""

    plane: ControlPlane
    namespace: str
    fleet: Fleet
    routers: list[ScriptedRouter]
    kubelet: Kubelet
    api: ApiClient
    controller: asyncio.subprocess.Process | None = None
    history: list[tuple[str, str]] = field(default_factory=list)
    """Reasons and messages of the pools' status, as `until` saw them."""

    async def start(self) -> None:
        """Start the controller."""
        routers = [flag for router in self.routers for flag in ("--router", router.address)]
        self.controller = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "deploy.controller", "--namespace", self.namespace, *routers,
            cwd=ROOT, env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig(CONTROLLER))},
        )  # fmt: skip

    async def stop(self) -> None:
        """End the controller as its pod's deletion would, and see it leave in order."""
        if self.controller is not None:
            self.controller.terminate()
            async with asyncio.timeout(PATIENCE_S):
                assert await self.controller.wait() == 0
            self.controller = None

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.plane.kubectl, "-n", self.namespace, *arguments, stdin=stdin)

    async def apply(self, *bodies: Body) -> None:
        await self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    async def pool(self, name: str) -> Body:
        """Return a WorkerPool."""
        api = CustomObjectsApi(self.api)
        return dict(await api.get_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name))

    async def ready(self, name: str) -> Body:
        """Return the condition Ready of a pool; empty before the controller has written one."""
        return ready_of(await self.pool(name))

    async def live(self, deployment: str) -> dict[str, Body]:
        """Return the pods of a Deployment that are not being deleted, by name."""
        list_pods: Any = CoreV1Api(self.api).list_namespaced_pod
        selector = f"app={deployment}"
        answer = await list_pods(self.namespace, label_selector=selector, _preload_content=False)
        pods = json.loads(await answer.read())["items"]
        return {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    async def until_settled(self, name: str, replicas: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a pool is ready with so many workers."""

        async def settled() -> bool:
            pool = await self.pool(name)
            ready = ready_of(pool)
            self.history.append((ready.get("reason", ""), ready.get("message", "")))
            is_current = ready.get("observedGeneration") == pool["metadata"]["generation"]
            return bool(is_current and ready["status"] == "True" and pool["status"]["routable"] == replicas)

        await until(
            f"{name} is settled with {replicas} workers", settled, lambda: str(self.history[-1:]), timeout_s
        )


@contextlib.asynccontextmanager
async def scene(plane: ControlPlane, fleet: Fleet | None = None) -> AsyncIterator[Scene]:
    """Yield an empty namespace with a kubelet and routers; the controller may do what the chart allows it."""
    fleet, namespace = fleet or Fleet(), f"fleet-{next(_numbers)}"
    api: ApiClient = await new_client_from_config(str(plane.kubeconfig("admin")))
    async with api, routers(fleet) as started:
        kubelet = Kubelet(api, namespace, fleet)
        made = Scene(plane, namespace, fleet, started, kubelet, api)
        await asyncio.to_thread(allow, plane, namespace)
        running = asyncio.create_task(kubelet.run())
        try:
            yield made
        finally:
            await made.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def ready_of(pool: Body) -> Body:
    """Return the condition Ready; empty if there is none."""
    return dict(next(iter(pool.get("status", {}).get("conditions", [])), {}))


def allow(plane: ControlPlane, namespace: str) -> None:
    """Make a namespace in which the controller has the rights that the chart gives it, and no others."""
    group = "rbac.authorization.k8s.io"
    named = {"name": "controller", "namespace": namespace}
    rules = yaml.safe_load(RULES.read_text())
    bodies = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": named, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "controller"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": CONTROLLER}],
        },
    ]
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))


async def until(
    what: str, holds: Callable[[], Any], seen: Callable[[], str] = str, timeout_s: float = PATIENCE_S
) -> None:
    """Wait until a condition holds, which may be a coroutine's; the error says what was seen last."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                result = holds()
                if await result if asyncio.iscoroutine(result) else result:
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout_s:g} s; {seen()}") from None
