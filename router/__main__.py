"""`python -m router`: parse, build, serve, drain.

Exit codes: 0 after a drain, 2 a setting is wrong, 3 Redis does not respond, 4 the model cannot be served, 6
the event loop stood still, 71 there was no memory for a decision. Several processes end with their worst.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import dataclasses
import os
import secrets
import sys
from functools import partial
from pathlib import Path

import grpc.aio
import structlog
import uvloop

from gguf_model.errors import GgufUnusable
from model_output.text.model_files import FileUnusable
from router.api.auth_interceptor import AuthInterceptor
from router.api.error_interceptor import ErrorInterceptor, UnknownMethods
from router.api.fleet_service import FleetService
from router.api.scaler_service import ScalerService
from router.api.service import InferenceService
from router.auth.auth import Auth
from router.auth.rules import AuthFileUnusable
from router.config import RouterConfig, parse_config
from router.core.core import RouterCore
from router.core.model.events import RouterLeaving, RouterStopping
from router.core.model.state import CoreConfig
from router.errors import RouterError
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts, ModelUnusable, read_model_facts
from router.intake.preprocessor import Preprocessor
from router.links.metrics import RouterMetrics
from router.links.shell import Shell
from router.processes import Processes
from router.replay.recording import Recorder
from runtime.checkpoints import FACTS_ALONE, Checkpoints
from runtime.hub.apart import FetchFailed
from runtime.hub.contents import Scope
from runtime.hub.refusals import HubRefused
from runtime.process.event_loop import freeze_garbage, measure_loop, start_threads, watch_loop
from runtime.process.log import configure_logging, say_why
from runtime.process.reports import report
from runtime.rpc import reflection
from runtime.rpc.health import SERVICE_NAME, WHOLE, Health
from runtime.rpc.listening import AddressUnusable, MetricsServer, add_port
from runtime.security.tls import CertificateRole, FleetTls, TlsUnusable, read_pem
from runtime.settings import draw_number
from runtime.state.access import RedisAccess, SecretUnusable
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from runtime.tracing.tracer import open_tracer

EXIT_CONFIG = 2
EXIT_REDIS = 3
EXIT_MODEL = 4


async def serve(config: RouterConfig, facts: ModelFacts) -> None:
    """Serve until a signal arrives, then finish running requests within `drain_s`."""
    start_threads()
    service = config.service
    tls = service.security.load(CertificateRole.ROUTER)
    store = await Store.connect(service.redis, access=RedisAccess(**service.security.redis_files()))
    pool = TokenizerPool(
        facts.tokenizer_file,
        config.tokenizer_processes,
        facts.chat_template,
        facts.formats,
        config.limits.max_waiting_prompt_bytes,
        config.special_tokens_in_content,
    )
    watchdog = watch_loop()
    try:
        await pool.warm_up()
        await _serve_with(config, facts, store, pool, tls)
    finally:
        pool.close()
        await store.close()
        watchdog.stop()


async def _serve_with(
    config: RouterConfig, facts: ModelFacts, store: Store, pool: TokenizerPool, tls: FleetTls | None
) -> None:
    service = config.service
    core_config = CoreConfig(
        config.router_id,
        config.policy,
        config.placement,
        queue_capacity=config.queue_capacity,
        weights=config.weights,
        serves_without_store=config.without_redis == "local",
        router_incarnation=secrets.token_hex(8),
    )
    metrics = RouterMetrics()
    recorder = _recorder(config.record, core_config, metrics)
    tracer = open_tracer(service.tracing, "baton-router", config.router_id)
    core = RouterCore(core_config)
    shell = Shell(core, store, metrics, facts.name, recorder, tls, service.model_commit, tracer)
    metrics.add_waiting(partial(len, shell.core.state.waiting))
    metrics.add_gen_ai_names(facts.name)
    if service.metric_names == "vllm":
        metrics.add_vllm_names(facts.name)
    auth = None if config.door is None else Auth(config.door, store)
    server = grpc.aio.server(
        interceptors=_interceptors(auth, metrics),
        options=config.limits.server_options(shares_port=config.processes > 1),
    )
    preprocessor = Preprocessor(shell, facts, pool, config.limits)
    generations, health, inference = await _add_services(server, shell, preprocessor, facts, auth, config)
    await _update_health(shell, pool, health, inference)
    client_ca = None if config.client_ca is None else read_pem(config.client_ca)
    port = add_port(server, service.listen, tls, client_ca)
    metrics_server = MetricsServer(service.host, service.metrics_port, metrics.registry, service.security)
    running = asyncio.create_task(_run(shell, pool, health, inference))
    await server.start()
    door = "open" if auth is None else "locked"
    if not facts.eos_token_ids:
        reason = "no file of the model names an end of sequence: outputs go on to max_tokens"
        structlog.get_logger().warning("no_end_of_sequence", reason=reason)
    structlog.get_logger().info("listening", **service.security.describe(service.listen), door=door)
    # With several processes, the parent takes SIGINT and forwards it as SIGTERM.
    stop = _stop_on_signals(signal.SIGTERM, *((signal.SIGINT,) if config.processes == 1 else ()))
    freeze_garbage()
    standstills = measure_loop(metrics.registry)
    _print_ready(config.router_id, service.address(port), metrics_server.address)
    await _until_stopped(stop, running)
    structlog.get_logger().info("draining", running_sessions=len(shell.core.state.live))
    await health.leave()
    shell.submit(RouterLeaving())
    generations.leave()
    await _drain(shell, service.drain_s)
    await server.stop(grace=1.0)
    preprocessor.close()
    await shell.store_calls.settle()
    if tracer is not None:
        await asyncio.to_thread(tracer.close)
    if recorder is not None:
        recorder.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    standstills.stop()
    metrics_server.stop()


async def _run(shell: Shell, pool: TokenizerPool, health: Health, inference: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shell.run())
        while True:
            await shell.ticker.next()
            await _update_health(shell, pool, health, inference)


async def _update_health(shell: Shell, pool: TokenizerPool, health: Health, inference: str) -> None:
    """Report inference, and the router as a whole, as SERVING if a request sent now could run."""
    await health.set_status((WHOLE, inference), serving=shell.serves and pool.works)


def _recorder(path: Path | None, config: CoreConfig, metrics: RouterMetrics) -> Recorder | None:
    def failed(error: OSError) -> None:
        metrics.loop_errors.labels("recording").inc()
        structlog.get_logger().error("recording_stopped", path=str(path), reason=error.strerror)

    return Recorder(path, config, failed) if path is not None else None


def _interceptors(auth: Auth | None, metrics: RouterMetrics) -> tuple[grpc.aio.ServerInterceptor, ...]:
    def refused(error: RouterError) -> None:
        metrics.requests.labels(type(error).__name__).inc()

    errors = ErrorInterceptor(refused)
    return (errors,) if auth is None else (errors, AuthInterceptor(auth, refused))


async def _add_services(
    server: grpc.aio.Server,
    shell: Shell,
    preprocessor: Preprocessor,
    facts: ModelFacts,
    auth: Auth | None,
    config: RouterConfig,
) -> tuple[InferenceService, Health, str]:
    """Add all services. Return that of inference, and that of health with the former's name there."""
    service = InferenceService(
        shell, preprocessor, facts, auth, config.limits.max_streams, shares_port=config.processes > 1
    )
    inference = service.add_to(server)
    others = [FleetService(shell, facts).add_to(server), ScalerService(shell).add_to(server), SERVICE_NAME]
    health = Health(server)
    await health.set_status([*others, *reflection.NAMES], serving=True)
    reflection.add_reflection(server, [inference, *others])
    server.add_generic_rpc_handlers((UnknownMethods(),))
    return service, health, inference


def _print_ready(router_id: str, address: str, metrics: str) -> None:
    report(f"READY router {router_id} address={address} metrics={metrics}")


def _stop_on_signals(*numbers: signal.Signals) -> asyncio.Event:
    """Return an event that these signals set. A second signal ends the process at once."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _until_stopped(stop: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Wait for a signal. Raise the shell's error if it ends before."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((stopping, running), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        stopping.cancel()
        await running


async def _drain(shell: Shell, drain_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + drain_s
    while shell.core.state.live and loop.time() < end:  # noqa: ASYNC110 -- once per process, at its end
        await asyncio.sleep(0.05)
    shell.submit(RouterStopping())


def main() -> int:
    """Run the router and return the exit code."""
    try:
        config = parse_config(sys.argv[1:], draw_number())
        checkpoints = Checkpoints(config.service, "router", config.router_id, FACTS_ALONE)
        service = checkpoints.settings(Scope.FACTS)
    except ValueError as error:
        return _leave(EXIT_CONFIG, error)
    except (HubRefused, GgufUnusable) as error:
        return _leave(EXIT_MODEL, error)
    except FetchFailed as error:
        return error.exit_code
    config = dataclasses.replace(config, service=service)
    if config.processes == 1:
        return _run_one(config)
    try:
        return Processes(config, _run_one).run()
    except AddressUnusable as error:
        return _leave(EXIT_CONFIG, error)


def _run_one(config: RouterConfig) -> int:
    configure_logging(config.service.log_level, config.service.log_format, router=config.router_id)
    try:
        uvloop.run(serve(config, _facts(config)))
    except (FileUnusable, ModelUnusable) as error:
        return _leave(EXIT_MODEL, error)
    except StoreUnavailable as error:
        return _leave(EXIT_REDIS, error)
    except (AddressUnusable, AuthFileUnusable, SecretUnusable, TlsUnusable) as error:
        return _leave(EXIT_CONFIG, error)
    return 0


def _facts(config: RouterConfig) -> ModelFacts:
    facts = read_model_facts(config.service.model)
    facts = dataclasses.replace(
        facts,
        name=config.service.model_name,
        more_names=config.served_model_names,
        formats=config.formats(facts.formats),
    )
    if config.generation_config == "none":
        facts = dataclasses.replace(facts, sampling_defaults={})
    if config.timed is None:
        return facts
    return dataclasses.replace(facts, max_context_tokens=config.timed.max_context)


def _leave(code: int, error: Exception) -> int:
    say_why(error)
    return code


if __name__ == "__main__":
    sys.exit(main())
