"""The standard gRPC health service of a process and its services."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio
from grpc_health.v1 import (  # type: ignore[import-untyped]  # ships no annotations
    health,
    health_pb2,
    health_pb2_grpc,
)

SERVICE_NAME: str = health.SERVICE_NAME
WHOLE = ""
"""The protocol's name of the process as a whole."""


class Health:
    """The health service. No name is SERVING until `set_status` sets it."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._servicer = health.aio.HealthServicer()
        self._serving: dict[str, bool] = {}
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_status(self, names: Iterable[str], *, serving: bool) -> None:
        """Set the status of these services."""
        status = health_pb2.HealthCheckResponse
        for name in names:
            if self._serving.get(name) is not serving:
                self._serving[name] = serving
                await self._servicer.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def leave(self) -> None:
        """Report NOT_SERVING from now on, whatever is set later."""
        await self._servicer.enter_graceful_shutdown()
