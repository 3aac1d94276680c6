"""What a service listens on: a port for calls, one for metrics. Which cannot be had is said in a sentence."""

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

from services.process.threads import started_executor
from services.security.settings import Security
from services.security.tls import FleetTls

NUM_SCRAPES = 4
"""At once; who comes while they are served waits."""
SCRAPE_S = 5.0
"""Who takes longer makes room for who comes."""


class AddressUnusable(ValueError):
    """Nobody can listen there, most often because somebody does; the message names flag and address."""

    def __init__(self, flag: str, address: str, reason: str, accepted: str) -> None:
        super().__init__(f"{flag} is {address}, which cannot be bound: {reason}; accepted: {accepted}")
        self.flag = flag
        self.address = address
        self.reason = reason


def add_port(server: grpc.aio.Server, listen: str, tls: FleetTls | None, client_ca: bytes | None) -> int:
    """The bound port. Raises `AddressUnusable`."""
    try:
        port: int = (
            server.add_insecure_port(listen)
            if tls is None
            else server.add_secure_port(listen, tls.server_credentials(client_ca))
        )
    except RuntimeError:  # gRPC says why on stderr, and nowhere else
        reason = "it is taken, or no address of this machine"
        accepted = "HOST:PORT of this machine with a free port, or port 0 for any"
        raise AddressUnusable("--listen", listen, reason, accepted) from None
    return port


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
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            accepted = f"a free port of {host}, or 0 for any"
            raise AddressUnusable("--metrics-port", f"{host}:{port}", reason, accepted) from error
        self._threads = started_executor(NUM_SCRAPES, "metrics")
        self._since: dict[socket.socket, float] = {}
        self._server.process_request = self._answer  # its own way is a new thread for each
        if security.tls is not None:  # no handshake while others wait to be accepted
            self._server.socket.do_handshake_on_connect = False
        self.address = f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """Returns once its threads have ended; who is still being served is hung up on."""
        self._server.shutdown()
        self._thread.join()
        self._hang_up(math.inf)
        self._threads.shutdown()
        self._server.server_close()

    def _answer(self, request: socket.socket, address: Any) -> None:
        now = time.monotonic()
        self._hang_up(now - SCRAPE_S)
        request.settimeout(SCRAPE_S)
        self._since[request] = now
        self._threads.submit(self._serve, request, address)

    def _hang_up(self, came_before: float) -> None:
        for request, since in list(self._since.items()):
            if since < came_before:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(request, socket.SHUT_RDWR)  # not TLS's: a thread is using that

    def _serve(self, request: socket.socket, address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                request.do_handshake()
        except OSError:  # a stranger
            request.close()
        else:
            self._server.process_request_thread(request, address)
        finally:
            del self._since[request]


def _tls(security: Security) -> dict[str, Any]:
    """Metrics are read with any certificate of the fleet's CA."""
    if security.tls is None:
        return {}
    return {
        "certfile": str(security.tls.cert),
        "keyfile": str(security.tls.key),
        "client_cafile": str(security.tls.ca),
        "client_auth_required": True,
    }
