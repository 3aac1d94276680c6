"""Builds the sides of the handoff: what both kinds of worker have, around what is a kind's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from engine.core.commands import Command
from kvtransfer.errors import TransportUnavailableError
from kvtransfer.fence import FenceGuard
from kvtransfer.pools.pool import BlockPool
from kvtransfer.receiving.receiver import Receiver, ReceiverLimits
from kvtransfer.sending.service import KVTransferService
from kvtransfer.transports.nixl import NixlAgent, is_installed
from kvtransfer.transports.shm import ShmServer
from kvtransfer.transports.transport import TransportMode
from runtime.security.tls import FleetTls
from scheduling.request import FailureReason
from worker.commands import StartCommand
from worker.config import WorkerConfig
from worker.engine.engine import Engine
from worker.errors import StartupError
from worker.handoff.cuda_ipc import cuda_transport_of, offer_of
from worker.handoff.fetch_side import FetchSide
from worker.handoff.read_side import ReadSide
from worker.handoff.sides import HandoffSides, Receiving, SenderSide
from worker.handoff.staging import source_of, target_of
from worker.metrics import WorkerMetrics
from worker.streams.server import WorkerServer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HandoffContext:
    """The parts of a worker that its handoffs deal with."""

    config: WorkerConfig
    engine: Engine
    incarnation: str
    guard: FenceGuard
    metrics: WorkerMetrics
    server: WorkerServer
    submit: Callable[[Command], None]
    """Sends a command to the engine."""
    fail: Callable[[int, FailureReason, str], None]
    """Sends a failure to the router of a sequence."""
    new_handle: Callable[[], int]
    """Draws a handle of the engine's that no sequence has."""
    tls: FleetTls | None


BuildSides = Callable[[HandoffContext], HandoffSides]
"""Builds the sides that a kind of worker has."""


def build_sides(
    context: HandoffContext,
    start_commands: frozenset[type[StartCommand]],
    receiver: Receiver | None,
    receiving: Receiving | None = None,
) -> HandoffSides:
    """Return the sides of a worker that starts sequences by these commands, and receives by `receiving`.

    What others lend it comes by `receiver`. Add the service for receivers to the worker's server.
    """
    kept, links = context.engine.tiers, context.engine.links
    submit, metrics = context.submit, context.metrics
    reading = None if kept is None else ReadSide(kept.tiers, submit)
    fetching = None
    if receiver is not None and links is not None:
        fetching = FetchSide(receiver, links, context.incarnation, submit, metrics)
    sending, shm, nixl = _build_sender(context)
    return HandoffSides(start_commands, sending, receiving, reading, fetching, receiver, shm, nixl)


def build_receiver(context: HandoffContext) -> Receiver:
    """Return what a worker receives blocks by."""
    config, engine = context.config, context.engine
    limits = ReceiverLimits()
    target = target_of(engine.pool, limits)
    return Receiver(
        target,
        config.block_size,
        engine.fingerprint,
        config.transport,
        limits,
        tls=context.tls,
        nixl=_nixl_agent(context, target.pool, "receive"),
        cuda=cuda_transport_of(config.transport, engine.pool),
    )


def _build_sender(context: HandoffContext) -> tuple[SenderSide, ShmServer | None, NixlAgent | None]:
    """Return the sender's side, and what receivers on this host, or by NIXL, read its memory by."""
    config, engine = context.config, context.engine
    source = source_of(engine)
    shm = None
    if config.transport in (TransportMode.AUTO, TransportMode.SHM):
        shm = ShmServer(source.pool, context.incarnation, config.shm_dir)
    nixl = _nixl_agent(context, source.pool, "send")
    offer = offer_of(config.transport, engine.pool)
    side = SenderSide(
        context.incarnation,
        source,
        config.block_size,
        context.guard,
        submit=context.submit,
        fail=context.fail,
        metrics=context.metrics,
        on_device=None if offer is None else offer.source,
        new_handle=None if engine.links is None else context.new_handle,
    )
    service = KVTransferService(
        side.handoffs,
        source,
        fingerprint=engine.fingerprint,
        block_size=config.block_size,
        shm_socket="" if shm is None else str(shm.path),
        nixl=None if nixl is None else nixl.describe(),
        cuda=None if offer is None else offer.pool,
        lending=side.lending,
    )
    context.server.add(service)
    return side, shm, nixl


def _nixl_agent(context: HandoffContext, pool: BlockPool, purpose: str) -> NixlAgent | None:
    """Return an agent with `pool` registered; None if NIXL is not used.

    Without `--transport nixl` it is used if it is installed and the fleet does not encrypt, as NIXL does not.
    """
    mode = context.config.transport
    by_itself = mode is TransportMode.AUTO and is_installed() and context.tls is None
    if mode is not TransportMode.NIXL and not by_itself:
        return None
    try:
        return NixlAgent(f"{context.incarnation}-{purpose}", pool)
    except TransportUnavailableError as error:
        if mode is TransportMode.NIXL:
            raise StartupError(f"--transport is nixl; {error}") from error
        log.warning("nixl_unusable", reason=str(error))
        return None
