"""`python -m gateway`: parse, build, serve, drain.

Exit codes: 0 after a drain, 2 a setting is wrong, 3 Redis may evict keys, 6 the event loop stood still.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import math
import os
import resource
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp

from gateway.app import make_app, respond_to
from gateway.batches.endpoints import BatchApi
from gateway.batches.executor import Executor
from gateway.config import GatewayConfig, parse_config
from gateway.serving.connection import LEAVE_S, Connection, Pool
from gateway.serving.door import Door, Keys, crossing
from gateway.serving.errors import NameTwice
from gateway.serving.fleet import Fleets
from gateway.serving.metrics import GatewayMetrics
from gateway.serving.request_log import Requests
from gateway.serving.shares import Shares
from gateway.serving.streaming import LAST_WRITE_S
from runtime.process.event_loop import freeze_garbage, measure_loop, start_threads, watch_loop
from runtime.process.log import configure_logging, say_why
from runtime.process.reports import report
from runtime.rpc.listening import AddressUnusable, MetricsServer
from runtime.security.tls import check_in_date
from runtime.state.durable import DurableRedis, open_durable
from runtime.state.errors import StoreEvicts, StoreUnavailable
from runtime.tracing.tracer import open_tracer

EXIT_CONFIG = 2
EXIT_REDIS = 3
BACKLOG = 2048
"""Connections that may wait to be accepted."""


async def serve(config: GatewayConfig) -> None:
    """Serve until a signal arrives, then finish open responses within `drain_s`.

    What has not ended then, or when a second signal arrives, ends with an error of its API.
    """
    own = config.credentials
    for cert, key in {(own.cert, own.key), (config.https_cert, config.https_key)}:
        if cert is not None and key is not None:
            check_in_date(cert, key)
    start_threads()
    watchdog = watch_loop()
    listener, metrics = bound_socket(config), GatewayMetrics()
    metrics_server = MetricsServer(config.host, config.metrics_port, metrics.registry, config.security)
    tracer = open_tracer(config.tracing, "baton-gateway", address_of(listener))
    standstills = measure_loop(metrics.registry)
    try:
        async with (
            Fleets(config.fleets, config.credentials, config.connect_s) as fleets,
            open_durable(config.redis, config.redis_access) as redis,
        ):
            if redis is not None:
                await refuse_evicting(redis)
            await fleets.check_names()
            batch_api = None if redis is None else BatchApi.open(redis, config.file_limits)
            app = make_app(
                fleets,
                config.max_body_bytes,
                redis,
                batch_api,
                config.response_limits,
                has_page=config.has_page,
            )
            async with running_batches(app, fleets, batch_api, config.batch_lines):
                ending = asyncio.get_running_loop().create_future()
                counted = Requests(
                    _behind_door(config, app, fleets),
                    metrics,
                    ending,
                    strict_fields=config.strict_fields,
                    tracer=tracer,
                )
                server = _Server(
                    _settings(config, counted), listener, metrics_server.address, ending, config.drain_s
                )
                metrics.open_connections.set_function(lambda: len(server.server_state.connections))
                await server.serve(sockets=[listener])
    finally:
        listener.close()
        watchdog.stop()
        standstills.stop()
        metrics_server.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


async def refuse_evicting(redis: DurableRedis) -> None:
    """Raise `StoreEvicts` if Redis may drop keys. One that is away may come back while the gateway serves."""
    try:
        with redis.client() as client:
            await client.ping()
    except StoreEvicts:
        raise
    except StoreUnavailable as error:
        structlog.get_logger().warning("redis_away", reason=error.reason)


@asynccontextmanager
async def running_batches(
    app: FastAPI, fleets: Fleets, api: BatchApi | None, max_lines: int
) -> AsyncIterator[None]:
    """Run batches beside the server, where the gateway has Redis."""
    if api is None:
        yield
        return
    executor = Executor(app, fleets.fleet_of, api.batches, api.files, max_lines, api.wake)
    running = asyncio.create_task(executor.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Server(uvicorn.Server):
    """Says that it serves in the launcher's words, and leaves logging to structlog.

    It sets `ending` when open responses have to end.
    """

    def __init__(
        self,
        settings: uvicorn.Config,
        listener: socket.socket,
        metrics_address: str,
        ending: asyncio.Future[None],
        drain_s: float,
    ) -> None:
        super().__init__(settings)
        self._metrics_address = metrics_address
        self._address = address_of(listener)
        self._ending = ending
        self._drain_s = drain_s

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on a signal. uvicorn's own handlers raise it again at the end, before anything is closed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave)
        yield

    def _leave(self) -> None:
        """Drain. The second time, end at once what has not ended."""
        if self.should_exit:
            self._end_responses()
            asyncio.get_running_loop().call_later(LAST_WRITE_S, self._abort)
        self.should_exit = True

    def _end_responses(self) -> None:
        if not self._ending.done():
            self._ending.set_result(None)

    def _abort(self) -> None:
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        over = asyncio.get_running_loop().call_later(self._drain_s, self._end_responses)
        try:
            await super().shutdown(sockets)
        finally:
            over.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        freeze_garbage()
        scheme = "https" if self.config.is_ssl else "http"
        structlog.get_logger().info("listening", address=self._address, scheme=scheme)
        report(f"READY gateway address={self._address} metrics={self._metrics_address}")


def _behind_door(config: GatewayConfig, app: FastAPI, fleets: Fleets) -> ASGIApp:
    """Return what serves HTTP callers. Batches call the application itself."""
    bodies = Shares(config.max_bodies_bytes)
    door = Door(app, config.rules, Keys(fleets), bodies, config.max_body_bytes, respond_to)
    return crossing(door, config.allowed_origins)


def _settings(config: GatewayConfig, app: ASGIApp) -> uvicorn.Config:
    pool = Pool(config.max_connections, config.max_idle_connections)
    return uvicorn.Config(
        app,
        loop="none",
        http=cast("type[asyncio.Protocol]", partial(Connection, pool=pool)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type]  # a delay of the loop's
        timeout_graceful_shutdown=math.ceil(config.drain_s + LAST_WRITE_S + LEAVE_S + 1),
        ssl_certfile=config.https_cert,
        ssl_keyfile=None if config.https_key is None else str(config.https_key),
    )


def bound_socket(config: GatewayConfig) -> socket.socket:
    """Return the bound socket. Raises `AddressUnusable`."""
    port = int(config.listen.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        accepted = "HOST:PORT of this machine with a free port, or port 0 for any"
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise AddressUnusable("--listen", config.listen, reason, accepted) from None


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> int:
    """Run the gateway and return the exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each caller takes one
    try:
        config = parse_config(sys.argv[1:])
        configure_logging(config.log_level, config.log_format, gateway=config.listen)
        uvloop.run(serve(config))
    except (NameTwice, ValueError, ssl.SSLError, OSError) as error:
        say_why(error)
        return EXIT_CONFIG
    except StoreEvicts as error:
        say_why(error)
        return EXIT_REDIS
    return 0


if __name__ == "__main__":
    sys.exit(main())
