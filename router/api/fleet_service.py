"""FleetService: what operators call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext

import grpc.aio

from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.worker.v1 import worker_pb2
from router.core.model.events import DrainAsked
from router.core.model.fleet import Worker
from router.errors import ValidationError
from router.intake.model_facts import ModelFacts
from router.links.convert_worker import load_to_pb, role_to_pb
from router.links.discovery import Discovery
from router.links.shell import Shell
from router.links.step_log import NotedStep
from runtime.rpc.convert import cost_to_pb, to_pb
from runtime.rpc.handlers import Context
from runtime.state.errors import StoreUnavailable
from runtime.state.records import LoraRecord
from runtime.version import VERSION
from scheduling.memory.tiers import Tier
from scheduling.request import SloClass

DEFAULT_INTERVAL_MS = 500


class FleetService(fleet_pb2_grpc.FleetServiceServicer):
    """See `fleet.proto`."""

    def __init__(self, shell: Shell, facts: ModelFacts) -> None:
        self._shell = shell
        self._facts = facts
        self._started_at = shell.now()

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on `server`; returns the service's full name, for reflection."""
        fleet_pb2_grpc.add_FleetServiceServicer_to_server(self, server)
        return fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name

    async def Watch(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request: fleet_pb2.WatchRequest, context: Context
    ) -> None:
        interval_ms = request.interval_ms or DEFAULT_INTERVAL_MS
        if not 100 <= interval_ms <= 60_000:
            raise ValidationError("interval_ms", interval_ms, "100 to 60000, or 0 for 500")
        with self._shell.steps.watched() if request.include_steps else nullcontext() as tail:
            while True:
                await context.write(await self._snapshot(() if tail is None else tail.take()))
                await asyncio.sleep(interval_ms / 1000)

    async def Describe(
        self, request: fleet_pb2.DescribeRequest, context: Context
    ) -> fleet_pb2.DescribeResponse:
        fleet = self._shell.discovery.fleet
        return fleet_pb2.DescribeResponse(
            model_name=self._facts.name,
            architecture=self._facts.architecture,
            fingerprint=fleet.fingerprint if fleet else "",
            block_size=fleet.block_size if fleet else 0,
            max_context_tokens=self._facts.max_context_tokens,
            placement=self._shell.core.state.fleet.placement.value,
            version=VERSION,
            deterministic=bool(fleet and fleet.sameness),
        )

    async def Drain(self, request: fleet_pb2.DrainRequest, context: Context) -> fleet_pb2.DrainResponse:
        workers = self._shell.core.state.fleet.workers.values()
        known = any(worker.facts.worker_id == request.worker_id for worker in workers)
        self._shell.submit(DrainAsked(request.worker_id))
        return fleet_pb2.DrainResponse(draining=known)

    async def _snapshot(self, steps: Sequence[NotedStep]) -> fleet_pb2.WatchResponse:
        state = self._shell.core.state
        try:
            queue, reachable = await self._shell.store.queue_status(), True
            starting = await self._shell.store.list_starting()
        except StoreUnavailable:
            queue, reachable, starting = state.queue, False, []
        waiting = state.waiting.backlog
        return fleet_pb2.WatchResponse(
            router_id=state.config.router_id,
            uptime_s=self._shell.now() - self._started_at,
            queue=to_pb(
                fleet_pb2.QueueStatus,
                queue,
                capacity=state.config.queue_capacity,
                running_sessions=len(state.live),
                redis_reachable=reachable,
                waiting_interactive=waiting.requests_of(SloClass.INTERACTIVE),
                waiting_standard=waiting.requests_of(SloClass.STANDARD),
                waiting_batch=waiting.requests_of(SloClass.BATCH),
            ),
            workers=[_worker_to_pb(worker, self._shell.discovery) for worker in state.fleet.workers.values()],
            starting=[
                to_pb(
                    fleet_pb2.StartingWorker,
                    each.record,
                    role=role_to_pb(each.record.role),
                    silent_s=each.silent_s,
                )
                for each in starting
            ],
            counters=to_pb(fleet_pb2.Counters, state.counters),
            steps=[
                to_pb(fleet_pb2.WorkerStep, step, reported_at_s=step.noted_at - self._started_at)
                for step in steps
            ],
        )


def _worker_to_pb(worker: Worker, discovery: Discovery) -> fleet_pb2.WorkerStatus:
    computing = discovery.computing(worker.key)
    lora = discovery.loras.get(worker.key)
    load: worker_pb2.WorkerLoad = load_to_pb(worker.load)
    load.draining = worker.draining
    return to_pb(
        fleet_pb2.WorkerStatus,
        worker.facts,
        role=role_to_pb(worker.facts.role),
        connected=True,
        load=load,
        leased_blocks=worker.leased_blocks,
        step_seconds=worker.step_s,
        cost_model=cost_to_pb(worker.cost),
        dtype=computing.dtype,
        native_ops=computing.native_ops,
        disk_blocks=_num_blocks(worker, discovery, Tier.DISK),
        host_blocks=_num_blocks(worker, discovery, Tier.HOST),
        loadable_adapters=None if lora is None else len(lora.adapters),
        loaded_adapters=[] if lora is None else _loaded(lora),
    )


def _num_blocks(worker: Worker, discovery: Discovery, tier: Tier) -> int | None:
    """Return how many blocks a worker has in a tier; None if it has no such tier."""
    record = discovery.tiers.get(tier, {}).get(worker.key)
    return None if record is None else record.num_blocks


def _loaded(lora: LoraRecord) -> list[str]:
    """Return the names of the adapters in a worker's memory; digests where the files have changed."""
    names = {digest: name for name, digest in lora.adapters.items()}
    return sorted(names.get(digest, digest) for digest in lora.loaded)
