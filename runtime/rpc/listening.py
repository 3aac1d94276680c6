"""The ports of a service: one for calls, one for metrics."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import time
from threading import Thread
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry, start_http_server

from runtime.process.threads import started_executor
from runtime.security.settings import Security
from runtime.security.tls import FleetTls

NUM_SCRAPES = 4
"""Served at once; further scrapes wait."""
SCRAPE_S = 5.0
"""A scrape that takes longer is closed when the next one arrives."""
_FREE_ADDRESS = "HOST:PORT of this machine with a free port, or port 0 for any"


class AddressUnusable(ValueError):
    """The address cannot be bound, most often because it is in use; the message names flag and address."""

    def __init__(self, flag: str, address: str, reason: str, accepted: str) -> None:
        super().__init__(f"{flag} is {address}, which cannot be bound: {reason}; accepted: {accepted}")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def add_port(server: grpc.aio.Server, listen: str, tls: FleetTls | None, client_ca: bytes | None) -> int:
    """Return the bound port. Raises `AddressUnusable`."""
    try:
        port: int = (
            server.add_insecure_port(listen)
            if tls is None
            else server.add_secure_port(listen, tls.server_credentials(client_ca))
        )
    except RuntimeError:  # gRPC reports the reason on stderr only
        reason = "it is in use, or not an address of this machine"
        raise AddressUnusable("--listen", listen, reason, _FREE_ADDRESS) from None
    return port


def reserve_port(listen: str) -> tuple[socket.socket, int]:
    """Bind a port for gRPC servers that set `grpc.so_reuseport`; return what holds it, and its number.

    The socket accepts no connections. Raises `AddressUnusable`.
    """
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        reservation = socket.socket(family, kind, protocol)
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(where)
    except OSError as error:
        raise AddressUnusable("--listen", listen, _reason(error), _FREE_ADDRESS) from error
    # Set only now: a port that others share among themselves has been refused.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reservation, reservation.getsockname()[1]


class MetricsServer:
    """Serves a registry until `stop`, over mutual TLS where the service has certificates.

    Raises `AddressUnusable`.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, security: Security) -> None:
        self._server: Any
        self._thread: Thread
        try:
            self._server, self._thread = start_http_server(port, host, registry, **_tls(security))
        except OSError as error:
            accepted = f"a free port of {host}, or 0 for any"
            raise AddressUnusable("--metrics-port", f"{host}:{port}", _reason(error), accepted) from error
        self._threads = started_executor(NUM_SCRAPES, "metrics")
        self._accepted_at: dict[socket.socket, float] = {}
        self._server.process_request = self._submit  # by default it starts a thread per request
        if security.tls is not None:  # a handshake must not hold up the accepting thread
            self._server.socket.do_handshake_on_connect = False
        self.address = f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """Close open scrapes and return once all threads have ended."""
        self._server.shutdown()
        self._thread.join()
        self._hang_up(math.inf)
        self._threads.shutdown()
        self._server.server_close()

    def _submit(self, request: socket.socket, address: Any) -> None:
        now = time.monotonic()
        self._hang_up(now - SCRAPE_S)
        request.settimeout(SCRAPE_S)
        self._accepted_at[request] = now
        self._threads.submit(self._serve, request, address)

    def _hang_up(self, accepted_before: float) -> None:
        for request, accepted_at in list(self._accepted_at.items()):
            if accepted_at < accepted_before:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown: a thread is using the TLS state.
                    socket.socket.shutdown(request, socket.SHUT_RDWR)

    def _serve(self, request: socket.socket, address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                request.do_handshake()
        except OSError:  # no valid TLS client
            request.close()
        else:
            self._server.process_request_thread(request, address)
        finally:
            del self._accepted_at[request]


def _tls(security: Security) -> dict[str, Any]:
    """Return the TLS arguments: any certificate of the fleet's CA may read metrics."""
    if security.tls is None:
        return {}
    return {
        "certfile": str(security.tls.cert),
        "keyfile": str(security.tls.key),
        "client_cafile": str(security.tls.ca),
        "client_auth_required": True,
    }
