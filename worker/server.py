"""The gRPC server of a worker, with health and reflection, and its metrics endpoint."""

from __future__ import annotations

import grpc
from grpc_health.v1 import (  # type: ignore[import-untyped]  # ships no annotations
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]  # ships no annotations

OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A receiver pings while a long chunk is computed and nothing is said; that is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Two workers on one port would each get a share of the calls.
    ("grpc.so_reuseport", 0),
)


class WorkerServer:
    """Add servicers to `server`, then `start`."""

    def __init__(self) -> None:
        self.server = grpc.aio.server(options=OPTIONS)
        self.names: list[str] = []
        """Full names of the services added, for reflection."""
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    async def start(self, listen: str) -> int:
        """The bound port; raises ValueError when the address cannot be bound."""
        names = [*self.names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.server)
        try:
            port: int = self.server.add_insecure_port(listen)
        except RuntimeError as error:
            raise ValueError(
                f"--listen is {listen!r}, which cannot be bound; accepted: a free address"
            ) from error
        await self.server.start()
        return port

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        state = status.SERVING if serving else status.NOT_SERVING
        await self._health.set("", health_pb2.HealthCheckResponse(status=state))

    async def stop(self, grace_s: float) -> None:
        await self.server.stop(grace_s)
