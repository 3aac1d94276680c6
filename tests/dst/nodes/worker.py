"""A worker as one process: hub, fences and both sides of the handoff, as live workers have them.

Its streams to routers are connections that carry commands and reports as objects. It serves receivers by the
real service, and receives by the real receiver, over calls of the simulated network.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from decode_worker import sides as decode_sides
from decode_worker.receiver_side import ReceiverSide
from engine.core.commands import Decode, Prefill
from engine.core.report import Load, StepReport
from kvtransfer.fence import FenceGuard
from kvtransfer.manifest import Manifest
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.receiving.peers import TransportContext
from kvtransfer.receiving.receiver import Receiver
from kvtransfer.sending.service import KVTransferService
from kvtransfer.transports.grpc import GrpcReader
from kvtransfer.transports.transport import BlockReader, TransportMode
from prefill_worker import sides as prefill_sides
from router.core.model.actions import (
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
    WorkerCommand,
)
from router.core.model.events import PREFILL, SequenceFailed, StepReported, WorkerFacts, WorkerLoad
from scheduling.cost_model import CostModel
from scheduling.policies.policy import Policy
from tests.dst.nodes.engine import FINGERPRINT, Engine
from tests.dst.world.network import Connection, Network
from tests.dst.world.process import Process
from tests.dst.world.rpc import Servers, Stub
from worker.commands import CancelHandles, DrainWorker, PreCopy, ReceiveFrom, RouterCommand, StopAndCopy
from worker.handoff.sides import HandoffSides, SenderSide
from worker.metrics import WorkerMetrics
from worker.streams.hub import Hub
from worker.streams.routers import RouterSession, Sequences

HEARTBEAT_S = 2.0
"""Live workers send one five times a second. Here nobody counts them: links see whether they would come."""
METRICS = WorkerMetrics()
"""Nobody reads them: one set for all workers, since a set takes a millisecond."""


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """The limits of a worker."""

    num_blocks: int = 32
    block_size: int = 4
    max_num_seqs: int = 8
    token_budget: int = 16
    max_context: int = 64
    step_s: tuple[float, float] = (0.01, 0.04)


class _Peer:
    """Implements what a receive uses of `kvtransfer.receiving.peers.Peer`."""

    uses_gpu = False

    def __init__(self, address: str, incarnation: str, stub: Stub) -> None:
        self.address = address
        self.incarnation = incarnation
        self.stub = stub
        self.is_lost = False

    def mark_lost(self) -> None:
        self.is_lost = True

    def leave_gpu(self, reason: str) -> None:
        raise AssertionError("there is no GPU")

    async def reader(self, manifest: Manifest, transports: TransportContext) -> BlockReader:
        stub: Any = self.stub
        return GrpcReader(transports.pool, stub, self.address, self.mark_lost)


class _Peers:
    """Implements `kvtransfer.receiving.peers.Peers` over the simulated network."""

    def __init__(self, network: Network, process: Process, servers: Servers) -> None:
        self._connect = lambda address: Stub(network, process, servers, address)

    @contextlib.asynccontextmanager
    async def lease(self, address: str, incarnation: str) -> AsyncIterator[_Peer]:
        yield _Peer(address, incarnation, self._connect(address))

    async def close(self) -> None:
        pass


class WorkerNode:
    """One process of a worker; `servers` leads to the others."""

    def __init__(
        self,
        process: Process,
        network: Network,
        servers: Servers,
        role: str,
        incarnation: str,
        size: WorkerSize,
        policy: Policy,
        cost: CostModel,
    ) -> None:
        self.process = process
        self.facts = WorkerFacts(
            process.name,
            incarnation,
            role,
            process.name,
            FINGERPRINT,
            size.block_size,
            size.num_blocks,
            size.max_num_seqs,
            size.token_budget,
        )
        self.is_leaving = False
        self.on_left: Callable[[], None] = lambda: None
        """Called when it has drained and its process ends."""
        process.loop.within(self._build, network, servers, size, policy, cost)

    def _build(
        self, network: Network, servers: Servers, size: WorkerSize, policy: Policy, cost: CostModel
    ) -> None:
        process, incarnation = self.process, self.facts.incarnation
        self.guard = FenceGuard()
        self.engine = Engine(
            process,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            max_num_seqs=size.max_num_seqs,
            token_budget=size.token_budget,
            max_context=size.max_context,
            policy=policy,
            cost=cost,
            step_s=size.step_s,
            on_report=self._on_report,
        )
        pool = InPlace(self.engine.memory)
        sequences = Sequences(Load(free_blocks=size.num_blocks))
        self.sending = SenderSide(
            incarnation,
            pool,
            size.block_size,
            self.guard,
            submit=self.engine.submit,
            fail=sequences.fail,
            metrics=METRICS,
        )
        self.receiver: Receiver | None = None
        receiving = None
        if self.facts.role != PREFILL:
            self.receiver = Receiver(pool, size.block_size, FINGERPRINT, TransportMode.GRPC)
            peers: Any = _Peers(network, process, servers)
            self.receiver.peers = peers
            receiving = ReceiverSide(self.receiver, self.engine.submit, METRICS)
        self.receiving = receiving
        own = prefill_sides if self.facts.role == PREFILL else decode_sides
        sides = HandoffSides(own.START_COMMANDS, self.sending, receiving)
        self.hub = Hub(incarnation, sequences, sides, self.engine.submit, self.guard, METRICS)
        service: Any = KVTransferService(
            self.sending.handoffs, pool, fingerprint=FINGERPRINT, block_size=size.block_size
        )
        methods = ("Open", "Fetch", "Acknowledge", "Abort")
        servers[process.name] = process, {name: getattr(service, name) for name in methods}
        process.loop.spawn(self._leave_when_drained())

    def _on_report(self, report: StepReport) -> None:
        self.hub.on_report(report)

    # Streams to routers

    def serve(self, connection: Connection, router_id: str) -> None:
        """Serve one router on a connection that it has opened."""
        session = self.hub.connect(router_id)
        loop = self.process.loop
        writing = loop.spawn(self._write(session, connection))

        def end(_: str) -> None:
            writing.cancel()
            self.hub.disconnect(session)

        connection.listen(self.process, lambda command: self.hub.apply(session, _command(command)), end)
        connection.send(
            self.process, ("welcome", self.facts, self._load(self.hub.load), self.engine.cost), "Welcome"
        )

    async def _write(self, session: RouterSession, connection: Connection) -> None:
        while not session.is_finished:
            report = await session.take(HEARTBEAT_S)
            if report is not None:
                event = self._event(report)
                connection.send(self.process, ("report", event), "report")
            elif not session.is_finished:
                connection.send(self.process, ("heartbeat", self._load(self.hub.load)), "heartbeat")
        connection.close(self.process, "the worker ended the stream")

    def _load(self, load: Load) -> WorkerLoad:
        return WorkerLoad(
            load.step,
            load.running,
            load.waiting,
            load.pending_prefill_tokens,
            load.free_blocks,
            load.cached_blocks,
            load.context_tokens,
            self.hub.draining.is_set(),
            load.preempted,
        )

    def _event(self, report: StepReport) -> StepReported:
        return StepReported(
            worker_key=self.facts.key,
            tokens=report.tokens,
            load=self._load(report.load),
            step_s=report.step_seconds,
            failures=tuple(
                SequenceFailed(
                    failure.handle,
                    failure.reason,
                    failure.message,
                    failure.session,
                    failure.session_age_seconds,
                )
                for failure in report.failures
            ),
            prefilled=tuple(each.handle for each in report.prefilled),
            cached_tokens=tuple(each.cached_tokens for each in report.prefilled),
            shape=report.shape,
            preempted=tuple(report.preempted),
            resumed=tuple(report.resumed),
            parked=tuple(report.parked),
            released=tuple(report.released),
        )

    # Its end

    def leave(self) -> None:
        """Drain, as at SIGTERM."""
        self.process.do(self.hub.drain)

    async def _leave_when_drained(self) -> None:
        await self.hub.draining.wait()
        self.is_leaving = True
        await self.hub.wait_until_empty()
        self.hub.close()
        self.process.loop.call_later(0.5, self.on_left)


def _command(command: WorkerCommand) -> RouterCommand:  # noqa: PLR0911 -- a table of commands
    match command:
        case SendPrefill(_, spec):
            return Prefill(spec)
        case SendDecode(_, spec):
            return Decode(spec)
        case SendReceive(_, spec, source_address, kind):
            return ReceiveFrom(spec, kind, source_address)
        case SendCancel(_, handles):
            return CancelHandles(handles)
        case SendDrain():
            return DrainWorker()
        case SendPreCopy(_, handle, part, num_blocks):
            return PreCopy(handle, part, num_blocks)
        case SendStopAndCopy(_, handle, parts):
            return StopAndCopy(handle, parts)
