"""The handlers of kopf: each event of a watch goes into `Cluster`, and wakes the loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import kopf

from deploy.controller.cluster import Cluster, Kind
from deploy.controller.writing import GROUP, PLURAL, VERSION


def handlers(cluster: Cluster, changed: asyncio.Event) -> kopf.OperatorRegistry:
    """Return the handlers. They only watch, so kopf writes neither finalizers nor annotations."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_async_client)
    kinds: dict[tuple[str, ...], Kind[Any]] = {
        (GROUP, VERSION, PLURAL): cluster.pools,
        ("apps", "v1", "deployments"): cluster.deployments,
        ("apps", "v1", "replicasets"): cluster.sets,
        ("", "v1", "pods"): cluster.pods,
    }
    for resource, kind in kinds.items():
        kopf.on.event(*resource, registry=registry, id=resource[-1])(_taking_into(kind, changed))
    return registry


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no events written, no rights to the whole cluster needed."""
    options = kopf.OperatorSettings()
    options.posting.enabled = False
    options.scanning.disabled = True
    return options


def _taking_into(kind: Kind[Any], changed: asyncio.Event) -> Any:
    async def take(event: kopf.RawEvent, **_: Any) -> None:
        body: Any = event["object"]
        if event["type"] == "DELETED":
            kind.drop(body["metadata"]["name"], body["metadata"]["uid"])
        else:
            kind.put(body, time.monotonic())
        changed.set()

    return take
