"""Wait until a fleet is whole: its routers are connected to every worker and report SERVING."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no annotations

from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.security.credentials import UNENCRYPTED, Credentials

_POLL_S = 0.1


async def wait_until_connected(
    address: str, workers: Collection[str], credentials: Credentials = UNENCRYPTED, processes: int = 1
) -> None:
    """Return once the router at `address` is connected to the workers at these addresses; never give up.

    Each connection is one of its `processes`, so all of them are met after some connections.
    """
    connected: set[str] = set()

    def is_connected(snapshot: fleet_pb2.WatchResponse) -> bool:
        if not {worker.address for worker in snapshot.workers if worker.connected}.issuperset(workers):
            return False
        connected.add(snapshot.router_id)
        return True

    request = fleet_pb2.WatchRequest(interval_ms=int(_POLL_S * 1000))
    while len(connected) < processes:
        await _watch(address, credentials, fleet_pb2_grpc.FleetServiceStub, request, is_connected)


async def wait_until_serving(address: str, credentials: Credentials = UNENCRYPTED) -> None:
    """Return once the router at `address` reports SERVING, after it has connected; never give up."""

    def is_serving(health: Any) -> bool:
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    request = health_pb2.HealthCheckRequest()
    await _watch(address, credentials, health_pb2_grpc.HealthStub, request, is_serving)


async def _watch(
    address: str, credentials: Credentials, stub: Any, request: Any, is_enough: Callable[[Any], bool]
) -> None:
    """Call `Watch` of the stub's service, again if it ends, until one of its messages is enough."""
    # Otherwise the next channel would take this one's connection.
    async with credentials.channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for message in stub(channel).Watch(request, metadata=credentials.metadata()):
                    if is_enough(message):
                        return
            await asyncio.sleep(_POLL_S)
