"""A fleet is whole once its routers are connected to their workers and say that they serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.fleet.joining import wait_until_connected, wait_until_serving
from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from runtime.rpc.health import WHOLE, Health
from tests.patience import PATIENCE_S


class ConnectedRouter(fleet_pb2_grpc.FleetServiceServicer):
    """A router connected to one worker. The launcher only watches, so nothing else answers."""

    async def Watch(
        self,
        request: fleet_pb2.WatchRequest,
        context: grpc.aio.ServicerContext[fleet_pb2.WatchRequest, fleet_pb2.WatchResponse],
    ) -> AsyncIterator[fleet_pb2.WatchResponse]:
        worker = fleet_pb2.WorkerStatus(address="127.0.0.1:1", connected=True)
        while True:
            yield fleet_pb2.WatchResponse(workers=[worker])
            await asyncio.sleep(0)

    async def Describe(self, request: Any, context: Any) -> fleet_pb2.DescribeResponse:
        raise AssertionError("only watched")

    async def Drain(self, request: Any, context: Any) -> fleet_pb2.DrainResponse:
        raise AssertionError("only watched")


async def test_a_connected_router_is_waited_for_until_it_serves() -> None:
    server = grpc.aio.server()
    health = Health(server)
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(ConnectedRouter(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        await health.set_status([WHOLE], serving=False)
        async with asyncio.timeout(PATIENCE_S):
            await wait_until_connected(address, {"127.0.0.1:1"})
        joining = asyncio.create_task(wait_until_serving(address))
        done, _ = await asyncio.wait([joining], timeout=0.3)
        assert not done
        await health.set_status([WHOLE], serving=True)
        async with asyncio.timeout(PATIENCE_S):
            await joining
    finally:
        await server.stop(None)
