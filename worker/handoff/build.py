"""Builds the sender's side of the handoff, which every kind of worker has."""

from __future__ import annotations

from kvtransfer.service import KVTransferService, SenderLayout
from kvtransfer.transports.shm import ShmServer
from kvtransfer.transports.transport import TransportMode
from worker.handoff.cuda_ipc import offer_of
from worker.handoff.nixl import agent_of
from worker.handoff.sender_side import EngineSide, SenderSide
from worker.handoff.staging import source_of
from worker.main import RoleContext


async def build_sender(context: RoleContext) -> SenderSide:
    """Return the sender's side; start its service, and the socket that shares its memory."""
    config = context.config
    source = source_of(context.engine, config.block_size)
    shm = None
    if config.transport in (TransportMode.AUTO, TransportMode.SHM):
        shm = ShmServer(source.pool, context.incarnation, config.shm_dir)
        await shm.start()
    nixl = agent_of(context, source.pool, "send")
    offer = offer_of(config.transport, context.engine.pool)
    side = SenderSide(
        context.incarnation,
        source,
        config.block_size,
        context.guard,
        engine=EngineSide(context.submit, context.fail),
        metrics=context.metrics,
        shm=shm,
        nixl=nixl,
        on_device=None if offer is None else offer.source,
    )
    layout = SenderLayout(
        context.engine.fingerprint,
        config.block_size,
        "" if shm is None else str(shm.path),
        None if nixl is None else nixl.describe(),
        None if offer is None else offer.pool,
    )
    context.server.add(KVTransferService(side.handoffs, source, layout))
    return side
