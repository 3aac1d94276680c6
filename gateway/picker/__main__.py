"""`python -m gateway.picker`: parse, build, serve, drain.

Exit codes: 0 after a drain, 2 a setting is wrong, 6 the event loop stood still.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import ssl
import sys

import grpc.aio
import structlog
import uvloop

from gateway.picker.config import PickerConfig, parse_config
from gateway.picker.metrics import PickerMetrics
from gateway.picker.pool import Pool
from gateway.picker.service import NAME, PickerService
from gateway.serving.fleet import Fleets
from runtime.process.event_loop import freeze_garbage, start_threads, watch_loop
from runtime.process.log import configure_logging, say_why
from runtime.process.reports import report
from runtime.rpc.health import SERVICE_NAME, WHOLE, Health
from runtime.rpc.listening import MetricsServer, add_port
from runtime.security.settings import Security
from runtime.security.tls import FleetTls, read_pem

EXIT_CONFIG = 2
CONNECT_S = 1.0
"""Routers that cannot be reached for longer leave requests unquoted."""
_LIVENESS, _READINESS = "liveness", "readiness"
_MESSAGE_ROOM = 1 << 20
"""Bytes of a message beside the body."""


async def serve(config: PickerConfig) -> None:
    """Serve until a signal arrives, then finish open streams within `drain_s`."""
    start_threads()
    watchdog = watch_loop()
    metrics = PickerMetrics()
    pool = Pool(config.gateways, config.gateway_context())
    metrics.gateways.set_function(lambda: pool.num_serving)
    metrics_server = MetricsServer(
        config.host.strip("[]"), config.metrics_port, metrics.registry, Security(insecure_listen=True)
    )
    watching = asyncio.create_task(pool.run(), name="pool")
    try:
        async with Fleets(config.fleets, config.credentials, CONNECT_S) as fleets:
            service = PickerService(pool, fleets, metrics, config.max_body_bytes)
            await _serve(config, service, pool, metrics_server.address)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        watchdog.stop()
        metrics_server.stop()


async def _serve(config: PickerConfig, service: PickerService, pool: Pool, metrics_address: str) -> None:
    limit = config.max_body_bytes + _MESSAGE_ROOM
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", limit)])
    service.add_to(server)
    health = Health(server)
    await health.set_status((_LIVENESS, SERVICE_NAME), serving=True)
    await health.set_status((WHOLE, _READINESS, NAME), serving=False)
    port = add_port(server, config.listen, _tls(config), None)
    await server.start()
    freeze_garbage()
    address = f"{config.host}:{port}"
    structlog.get_logger().info("listening", address=address, tls=config.tls_cert is not None)
    report(f"READY picker address={address} metrics={metrics_address}")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ready = asyncio.create_task(_report_ready(health, pool))
    await stop.wait()
    ready.cancel()
    await health.leave()
    await server.stop(grace=config.drain_s)


async def _report_ready(health: Health, pool: Pool) -> None:
    """Report SERVING once a gateway serves. Later, without any, the picker says so to callers itself."""
    await pool.has_served.wait()
    await health.set_status((WHOLE, _READINESS, NAME), serving=True)


def _tls(config: PickerConfig) -> FleetTls | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return FleetTls(b"", read_pem(config.tls_cert), read_pem(config.tls_key))


def main() -> int:
    """Run the picker and return the exit code."""
    try:
        config = parse_config(sys.argv[1:])
        configure_logging(config.log_level, config.log_format, picker=config.listen)
        uvloop.run(serve(config))
    except (ValueError, ssl.SSLError, OSError) as error:
        say_why(error)
        return EXIT_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
