"""When is a fleet whole? When its routers say that they hold a connection to every worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from baton.credentials import IN_THE_CLEAR, Credentials
from baton.operators.v1 import fleet_pb2

_WATCH = "/baton.operators.v1.FleetService/Watch"
_POLL_S = 0.1

_Judge = Callable[[set[str]], bool]
"""By the addresses of the workers that a router is connected to."""


async def wait_until_joined(address: str, num_workers: int, credentials: Credentials = IN_THE_CLEAR) -> None:
    """Returns once the router at `address` is connected to `num_workers` workers; never gives up."""
    await _wait_until(address, credentials, lambda connected: len(connected) >= num_workers)


async def wait_until_connected(address: str, workers: frozenset[str], credentials: Credentials) -> None:
    """Returns once the router at `address` is connected to all workers that listen there; never gives up."""
    await _wait_until(address, credentials, workers.issubset)


async def _wait_until(address: str, credentials: Credentials, is_enough: _Judge) -> None:
    async with credentials.channel(address, ()) as channel:
        while True:
            try:
                if await _watch_until(channel, credentials, is_enough):
                    return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_POLL_S)


async def _watch_until(channel: grpc.aio.Channel, credentials: Credentials, is_enough: _Judge) -> bool:
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
