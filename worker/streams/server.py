"""The gRPC server of a worker, with health and reflection, and its metrics endpoint."""

from __future__ import annotations

from typing import Protocol

import grpc

from runtime.rpc import health, reflection
from runtime.rpc.handlers import RefuseUnreadable
from runtime.rpc.health import Health
from runtime.rpc.listening import add_port
from runtime.rpc.role_guard import RoleGuard
from runtime.security.tls import CertificateRole, FleetTls

OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A receiver pings while a long chunk is computed and nothing is sent; that is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Two workers on one port would each get a share of the calls.
    ("grpc.so_reuseport", 0),
)


CALLERS = {
    "baton.worker.v1.WorkerService": frozenset({CertificateRole.ROUTER}),
    "baton.worker.v1.KVTransferService": frozenset({CertificateRole.WORKER}),
    # Health probes have a client's certificate at most.
    "grpc.health.v1.Health": frozenset(CertificateRole),
}
"""Roles whose certificates may call each service; everything else is for the fleet itself."""


class Service(Protocol):
    def add_to(self, server: grpc.aio.Server) -> str:
        """Register its methods; return the service's full name."""


class WorkerServer:
    """The gRPC server: add services, then `start` it."""

    def __init__(self, tls: FleetTls | None = None) -> None:
        self._tls = tls
        guards = (RefuseUnreadable(),) if tls is None else (RoleGuard(CALLERS), RefuseUnreadable())
        self._server = grpc.aio.server(interceptors=guards, options=OPTIONS)
        self._names = [health.SERVICE_NAME]
        self._health = Health(self._server)

    def add(self, service: Service) -> None:
        self._names.append(service.add_to(self._server))

    async def start(self, listen: str) -> int:
        """Listen, and return the bound port. Raises `AddressUnusable`."""
        reflection.add_reflection(self._server, self._names)
        await self.set_serving(serving=False)
        port = add_port(self._server, listen, self._tls, self._tls.ca if self._tls else None)
        await self._server.start()
        return port

    async def set_serving(self, serving: bool) -> None:
        """Set the health of all services, and of the worker as a whole."""
        names = (health.WHOLE, *self._names, *reflection.NAMES)
        await self._health.set_status(names, serving=serving)

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
