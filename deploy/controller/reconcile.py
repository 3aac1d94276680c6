"""The loop: look at each pool, write its status, take its next steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException

from deploy.controller.cluster import Cluster
from deploy.controller.decide import SetStanding, decide
from deploy.controller.observed import Seen
from deploy.controller.report import Report, report
from deploy.controller.routers import Routers
from deploy.controller.writing import Writer

log = structlog.get_logger()

LONGEST_PAUSE_S = 1.0
"""Grace periods and silences end without an event."""
SHORTEST_PAUSE_S = 0.2
LIST_EVERY_S = 300.0
NOT_FOUND = 404


class Reconciler:
    """Brings the pools of a namespace closer to their specs, whenever `changed` is set and each second."""

    def __init__(self, cluster: Cluster, routers: Routers, writer: Writer, changed: asyncio.Event) -> None:
        self._cluster = cluster
        self._routers = routers
        self._writer = writer
        self._changed = changed
        self._written: dict[str, tuple[int, Report]] = {}

    async def run(self) -> None:
        """Work until cancelled. Nothing is decided before everything has been listed once."""
        listed_at = float("-inf")
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_S):  # wait_for may lose a cancellation before 3.12
                    await self._changed.wait()
            self._changed.clear()
            if time.monotonic() - listed_at > LIST_EVERY_S and await _tried(self._writer.list_all()):
                listed_at = time.monotonic()
            if listed_at > float("-inf"):
                for view in self._cluster.see(self._routers.fleet(), time.monotonic()):
                    await _tried(self._advance(view))
            await asyncio.sleep(SHORTEST_PAUSE_S)

    async def _advance(self, view: Seen) -> None:
        """Write the status first: what a step sets off is never done before the status says that it began."""
        pool, status = view.pool, report(view)
        generation = self._cluster.pools.kept[pool.name].generation
        if self._written.get(pool.name) != (generation, status):
            await self._writer.write_status(pool.name, generation, status)
            self._written[pool.name] = (generation, status)
            log.info("status", pool=pool.name, reason=status.reason, message=status.message)
        for step in decide(view):
            log.info("step", pool=pool.name, step=str(step))
            try:
                await self._writer.take(step, pool.deployment, self._routers.drain)
            except ApiException as error:
                if error.status != NOT_FOUND:
                    raise
                if isinstance(step, SetStanding):  # deleted meanwhile; the watch may have missed it
                    self._cluster.pods.kept.pop(step.pod, None)


async def _tried(calls: Coroutine[Any, Any, None]) -> bool:
    """Return whether calls of the API server succeeded; what failed is tried again."""
    try:
        await calls
    except ApiException as error:
        log.warning("api_server_refused", status=error.status, reason=error.reason, body=str(error.body))
    except (ClientError, TimeoutError) as error:
        log.warning("api_server_failed", error=f"{type(error).__name__}: {error}")
    else:
        return True
    return False
