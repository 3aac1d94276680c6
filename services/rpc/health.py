"""The standard health service: whether each service of a process, and the process, can do its work now."""

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
"""How the protocol names the process as a whole."""


class Health:
    """The health service. Nothing is SERVING until `tell` says so."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._servicer = health.aio.HealthServicer()
        self._told: dict[str, bool] = {}
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tell(self, names: Iterable[str], *, serving: bool) -> None:
        """Set the status of these services."""
        status = health_pb2.HealthCheckResponse
        for name in names:
            if self._told.get(name) is not serving:
                self._told[name] = serving
                await self._servicer.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def leave(self) -> None:
        """Report NOT_SERVING from now on, whatever is set later."""
        await self._servicer.enter_graceful_shutdown()
