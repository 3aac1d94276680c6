"""When is a fleet whole? When its routers say that they hold a connection to every worker."""

from __future__ import annotations

import asyncio

import grpc

from baton.credentials import IN_THE_CLEAR, Credentials
from baton.v1 import fleet_pb2

_WATCH = "/baton.v1.FleetService/Watch"
_POLL_S = 0.1


async def wait_until_joined(address: str, num_workers: int, credentials: Credentials = IN_THE_CLEAR) -> None:
    """Returns once the router at `address` is connected to `num_workers` workers; never gives up."""
    async with credentials.channel(address, ()) as channel:
        while True:
            try:
                if await _watch_until_joined(channel, num_workers, credentials):
                    return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_POLL_S)


async def _watch_until_joined(channel: grpc.aio.Channel, num_workers: int, credentials: Credentials) -> bool:
    watch = channel.unary_stream(
        _WATCH,
        request_serializer=fleet_pb2.WatchRequest.SerializeToString,
        response_deserializer=fleet_pb2.WatchResponse.FromString,
    )
    request = fleet_pb2.WatchRequest(interval_ms=int(_POLL_S * 1000))
    async for snapshot in watch(request, metadata=credentials.metadata()):
        if sum(worker.connected for worker in snapshot.workers) >= num_workers:
            return True
    return False
