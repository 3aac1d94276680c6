"""Wait until a fleet is whole: its routers are connected to every worker and report SERVING."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import grpc
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # ships no annotations

from baton.operators.v1 import fleet_pb2
from baton.security.credentials import UNENCRYPTED, Credentials

_WATCH = "/baton.operators.v1.FleetService/Watch"
_WATCH_HEALTH = "/grpc.health.v1.Health/Watch"
_POLL_S = 0.1

_Look = Callable[[grpc.aio.Channel, Credentials], Awaitable[bool]]


async def wait_until_joined(address: str, num_workers: int, credentials: Credentials = UNENCRYPTED) -> None:
    """Return once the router at `address` is connected to `num_workers` workers and serves; never give up.

    A router updates its health after it has connected, so a connected router may still be NOT_SERVING.
    """
    await _wait_until(address, credentials, partial(_is_connected, lambda seen: len(seen) >= num_workers))
    await _wait_until(address, credentials, _is_serving)


async def wait_until_connected(address: str, workers: frozenset[str], credentials: Credentials) -> None:
    """Return once the router at `address` is connected to the workers at these addresses; never give up."""
    await _wait_until(address, credentials, partial(_is_connected, workers.issubset))


async def _wait_until(address: str, credentials: Credentials, look: _Look) -> None:
    async with credentials.channel(address, ()) as channel:
        while True:
            try:
                if await look(channel, credentials):
                    return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_POLL_S)


async def _is_connected(
    is_enough: Callable[[set[str]], bool], channel: grpc.aio.Channel, credentials: Credentials
) -> bool:
    """Watch until `is_enough` accepts the addresses of the connected workers; False if the watch ends."""
    watch = channel.unary_stream(
        _WATCH,
        request_serializer=fleet_pb2.WatchRequest.SerializeToString,
        response_deserializer=fleet_pb2.WatchResponse.FromString,
    )
    request = fleet_pb2.WatchRequest(interval_ms=int(_POLL_S * 1000))
    async for snapshot in watch(request, metadata=credentials.metadata()):
        if is_enough({worker.address for worker in snapshot.workers if worker.connected}):
            return True
    return False


async def _is_serving(channel: grpc.aio.Channel, credentials: Credentials) -> bool:
    """Watch until the router reports SERVING; False if the watch ends."""
    watch = channel.unary_stream(
        _WATCH_HEALTH,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    async for health in watch(health_pb2.HealthCheckRequest(), metadata=credentials.metadata()):
        if health.status == health_pb2.HealthCheckResponse.SERVING:
            return True
    return False
