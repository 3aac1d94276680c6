"""A worker process from its start to its end; the kind of worker passes in its own part.

Exit codes: 0 after a drain, 1 the step thread crashed, 2 a wrong setting, 3 Redis does not answer, 4 the
model cannot be served, or not deterministically, 5 the fleet serves something else, 6 a step or the
event loop stood still, 7 one of its processes (--tensor-parallel, --pipeline-parallel) has ended or failed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import structlog
import uvloop

from engine.core.report import StepReport
from engine.errors import (
    AdapterRefused,
    DraftRefused,
    GroupBrokenError,
    GroupRefused,
    ModelRefused,
    NotDeterministic,
)
from engine.group.links import Link
from engine.group.remote.sums import Connected
from engine.starting import OnProgress, Phase
from kvtransfer.fence import FenceGuard
from runtime.process.clock import compare_clocks
from runtime.process.event_loop import (
    freeze_garbage,
    measure_loop,
    start_threads,
    uncollected_imports,
    watch_loop,
)
from runtime.process.log import say_why
from runtime.process.reports import report
from runtime.process.watchdog import Watchdog, leave_stalled
from runtime.rpc.listening import MetricsServer
from runtime.security.tls import CertificateRole, FleetTls
from runtime.state.access import RedisAccess
from runtime.state.errors import StoreUnavailable
from runtime.state.records import WorkerRecord
from runtime.state.store import Store
from runtime.tracing.tracer import open_tracer
from scheduling.cost.cost_estimator import CostEstimator
from scheduling.memory.tiers import Tier
from worker.config import WorkerConfig
from worker.costs import Costs
from worker.engine.engine import Engine, EngineTiers, describe_link, stall_limit_s
from worker.engine.engine_thread import EngineThread, GrammarThread
from worker.errors import (
    EXIT_CONFIG,
    EXIT_CRASHED,
    EXIT_GROUP,
    EXIT_MODEL,
    EXIT_REDIS,
    GroupLostError,
    StartupError,
)
from worker.metrics import WorkerMetrics
from worker.process.prefix_changes import PrefixChanges
from worker.process.registration import AnnouncedTier, Registration, announced_start
from worker.process.starting import Start
from worker.role import WorkerRole
from worker.startup.build_sides import BuildSides, HandoffContext
from worker.streams.hub import Hub
from worker.streams.probes import ProbeResponder
from worker.streams.routers import Sequences
from worker.streams.sequence_spans import SequenceSpans
from worker.streams.server import WorkerServer
from worker.streams.service import WorkerService

log = structlog.get_logger()

Links = Sequence[Link] | Connected
"""Lead to the other processes of a worker; empty if it has only this one."""
STOP_GRACE_S = 1.0
"""Time for the last writes to routers when everything else has ended."""


DISK_CLOSE_S = 3.0
"""Time to write what is cached when everything has ended."""
DISK_OPEN_S = 3.0
"""Time to find what an earlier worker has left on a disk; one that takes longer is found while serving."""
ADAPTERS_S = 3.0
"""Time to find adapters to load; those that take longer to read are found while serving."""


class StopSignals:
    """Sets `stop` at the first SIGTERM or SIGINT once `serving`; before that a signal ends the process."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.serving = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self.serving:
            os._exit(0)
        if self.stop.is_set():
            os._exit(128 + number)  # the second signal ends at once
        self.stop.set()


class StepThreadEndedError(Exception):
    """The step thread ended by itself, which it must never do."""


def main(
    role: WorkerRole, build_sides: BuildSides, config: WorkerConfig, start: Start, links: Links = ()
) -> int:
    """Run until drained; return the process's exit code. `links` lead to processes that compute with it."""
    try:
        uvloop.run(_serve(role, build_sides, config, start, links))
    except (AdapterRefused, DraftRefused, GroupRefused, ModelRefused, NotDeterministic) as error:
        return _exit_code(EXIT_MODEL, error)
    except StoreUnavailable as error:
        return _exit_code(EXIT_REDIS, error)
    except StartupError as error:
        return _exit_code(error.exit_code, error)
    except ValueError as error:
        return _exit_code(EXIT_CONFIG, error)
    except StepThreadEndedError as error:
        log.exception("step_thread_ended")
        return EXIT_GROUP if isinstance(error.__cause__, GroupBrokenError) else EXIT_CRASHED
    return 0


def _exit_code(code: int, error: Exception) -> int:
    say_why(error)
    return code


async def _serve(
    role: WorkerRole, build_sides: BuildSides, config: WorkerConfig, start: Start, links: Links
) -> None:
    start_threads()
    signals = StopSignals()
    service = config.service
    tls = service.security.load(CertificateRole.WORKER)
    store = await Store.connect(service.redis, access=RedisAccess(**service.security.redis_files()))
    try:
        async with AsyncExitStack() as starting, AsyncExitStack() as cleanup:
            announced = announced_start(store, config.worker_id, role, lambda: start.progress)
            await starting.enter_async_context(announced)
            starting.callback(start.end)
            engine = await asyncio.to_thread(_build, config, start.report, links)
            start.report(Phase.JOINING)
            worker = _Worker(role, build_sides, config, engine, cleanup, tls)
            await worker.join(store)
            await starting.aclose()
            await worker.serve(signals)
    finally:
        await store.close()


def _build(config: WorkerConfig, on_progress: OnProgress, links: Links) -> Engine:
    """Build the engine. A worker that computes nothing starts without importing transformers."""
    if config.timed is not None:
        from worker.timed.timed_engine import build_timed_engine  # noqa: PLC0415 - see above

        return build_timed_engine(config, config.timed)
    with uncollected_imports():
        from worker.startup.build import build_engine  # noqa: PLC0415 - see above

    try:
        return build_engine(config, on_progress, links)
    except GroupBrokenError as error:
        raise GroupLostError(config.processes_flags, error) from error


class _Worker:
    """The parts of a serving worker; `cleanup` closes them in the reverse order."""

    def __init__(
        self,
        role: WorkerRole,
        build_sides: BuildSides,
        config: WorkerConfig,
        engine: Engine,
        cleanup: AsyncExitStack,
        tls: FleetTls | None,
    ) -> None:
        self._role = role
        self._tls = tls
        self._config = config
        self._engine = engine
        self._cleanup = cleanup
        self._guard = FenceGuard()
        self._metrics = WorkerMetrics()
        self._thread = EngineThread(engine.loop, self._on_report)
        self._record = self._describe()
        self._grammars = GrammarThread(engine.grammars, self._thread.submit)
        estimator = CostEstimator(engine.cost, engine.samples)
        self._costs = Costs(estimator, self._thread.submit, self._metrics)
        self._server = WorkerServer(self._tls)
        self._sequences = Sequences(engine.idle_load())
        self._sides = build_sides(self._handoff_context())
        tracer = open_tracer(config.service.tracing, f"baton-{role.value}-worker", config.worker_id)
        if tracer is not None:
            cleanup.push_async_callback(asyncio.to_thread, tracer.close)
        self._hub = Hub(
            self._record.incarnation,
            self._sequences,
            self._sides,
            self._grammars.submit,
            self._guard,
            self._metrics,
            None if tracer is None else SequenceSpans(tracer, config.worker_id),
        )
        self._probes = ProbeResponder()
        self._announced_tiers: dict[Tier, AnnouncedTier] = {}
        self._registration: Registration | None = None
        self._metrics_address = ""

    async def join(self, store: Store) -> None:
        """Return when routers may find this worker."""
        self._cleanup.callback(watch_loop().stop)
        self._metrics_address = self._start_metrics()
        self._start_engine()
        await self._sides.start()
        self._cleanup.push_async_callback(self._sides.close)
        port = await self._start_server()
        self._record = replace(self._record, address=self._config.service.address(port))
        if (kept := self._engine.tiers) is not None:
            await asyncio.to_thread(kept.tiers.wait_until_open, DISK_OPEN_S)
        if (loader := self._engine.adapter_loader) is not None:
            await asyncio.to_thread(loader.wait_until_known, ADAPTERS_S)
        await self._register(store)
        self._cleanup.callback(measure_loop(self._metrics.registry).stop)

    async def serve(self, signals: StopSignals) -> None:
        """Serve; return when the worker has been drained."""
        signals.serving = True
        self._announce_ready()
        await self._until_drained(signals)

    def _describe(self) -> WorkerRecord:
        """Return what others learn of this worker; the address is set once it listens."""
        return WorkerRecord(
            worker_id=self._config.worker_id,
            incarnation=secrets.token_hex(8),
            role=self._role.value,
            address="",
            fingerprint=self._engine.fingerprint,
            model_name=self._config.service.model_name,
            block_size=self._config.block_size,
            num_blocks=self._engine.pool.num_blocks,
            sameness=self._engine.determinism_digest,
            adapters=self._engine.adapters,
            num_stages=self._config.pipeline_parallel,
            model_commit=self._config.service.model_commit,
        )

    def _handoff_context(self) -> HandoffContext:
        return HandoffContext(
            config=self._config,
            engine=self._engine,
            incarnation=self._record.incarnation,
            guard=self._guard,
            metrics=self._metrics,
            server=self._server,
            submit=self._thread.submit,
            fail=self._sequences.fail,
            new_handle=self._sequences.new_handle,
            tls=self._tls,
        )

    def _start_metrics(self) -> str:
        service, sequences = self._config.service, self._sequences
        if service.metric_names == "vllm":
            sizes = self._record.block_size, self._record.num_blocks
            self._metrics.add_vllm_names(service.model_name, *sizes, lambda: sequences.load.free_blocks)
        server = MetricsServer(service.host, service.metrics_port, self._metrics.registry, service.security)
        self._cleanup.callback(server.stop)
        return server.address

    def _start_engine(self) -> None:
        freeze_garbage()
        if (kept := self._engine.tiers) is not None:
            self._start_tiers(kept)
            # Closed after the thread, which may still read and give up blocks.
            self._cleanup.push_async_callback(asyncio.to_thread, kept.close, DISK_CLOSE_S)
        self._cleanup.push_async_callback(self._costs.settle)
        self._thread.start()
        self._cleanup.callback(self._grammars.stop)
        if (loader := self._engine.adapter_loader) is not None:
            loader.start(self._thread.submit, self._metrics, self._announce_soon)
            self._cleanup.callback(loader.stop)
        limit_s = stall_limit_s(
            self._engine.samples, max(self._config.token_budget, self._config.max_num_seqs)
        )
        watchdog = Watchdog(self._thread.turn, limit_s, partial(leave_stalled, "step", self._thread.ident))
        watchdog.start()
        # Closed after the thread: a step may stall while the thread is stopped.
        self._cleanup.callback(watchdog.stop)
        self._cleanup.push_async_callback(self._thread.stop)

    def _start_tiers(self, kept: EngineTiers) -> None:
        announced = {
            tier: AnnouncedTier(PrefixChanges(), partial(kept.describe, tier)) for tier in kept.tiers.present
        }

        def on_change(tier: Tier, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
            announced[tier].changes.note(added, removed)

        kept.tiers.start(self._metrics.count_tier, on_change)
        self._announced_tiers = announced

    async def _start_server(self) -> int:
        service = WorkerService(
            self._hub,
            self._record,
            self._config,
            self._engine.computing,
            self._costs,
            self._thread.turn_s,
            self._probes,
        )
        self._server.add(service)
        port = await self._server.start(self._config.service.listen)
        self._cleanup.push_async_callback(self._server.stop, STOP_GRACE_S)
        self._probes.start(self._config.service.host, port)
        self._cleanup.callback(self._probes.stop)
        return port

    async def _register(self, store: Store) -> None:
        links, loader = self._engine.links, self._engine.adapter_loader
        describe_links = None if links is None else partial(describe_link, links)
        describe_lora = None if loader is None else loader.record
        self._registration = Registration(
            store, self._record, self._metrics, self._announced_tiers, describe_links, describe_lora
        )
        await self._registration.start()
        self._cleanup.push_async_callback(self._registration.stop)
        comparing = compare_clocks(store.read_clock_s, self._metrics.clock_offset.set)
        self._cleanup.callback(asyncio.create_task(comparing, name="clock").cancel)
        await self._server.set_serving(serving=True)

    def _announce_ready(self) -> None:
        record, metrics, service = self._record, self._metrics_address, self._config.service
        log.info("listening", **service.security.describe(service.listen))
        log.info("ready", address=record.address, metrics=metrics, num_blocks=record.num_blocks)
        report(f"READY {record.role}_worker {record.worker_id} address={record.address} metrics={metrics}")

    async def _until_drained(self, signals: StopSignals) -> None:
        """Serve until asked to stop, then wait for sequences to end or leave, `drain_s` at most."""
        stopping = asyncio.create_task(signals.stop.wait())
        draining = asyncio.create_task(self._hub.draining.wait())
        ended = self._thread.ended
        await asyncio.wait((stopping, draining, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise StepThreadEndedError from ended.exception()
        self._hub.drain()
        log.info("draining")
        assert self._registration is not None
        await self._registration.stop()
        await self._server.set_serving(serving=False)
        empty = asyncio.create_task(self._hub.wait_until_empty())
        waited = (empty, ended)
        await asyncio.wait(waited, timeout=self._config.service.drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not empty.done():
            log.warning("drain_cut_short", after_s=self._config.service.drain_s)
        for task in (draining, empty, stopping):
            task.cancel()
        self._hub.close()

    def _announce_soon(self) -> None:
        if self._registration is not None:
            self._registration.announce_soon()

    def _on_report(self, report: StepReport) -> None:
        if report.adapter_loads and self._engine.adapter_loader is not None:
            self._engine.adapter_loader.on_report(report)
        if self._registration is not None:
            self._registration.prefixes.note(report.cached_hashes, report.evicted_hashes)
        self._hub.on_report(report)
        self._costs.observe(report)
