"""Builds the handoff sides of a decode worker."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from decode_worker.sides import DecodeSide
from kvtransfer.receiver import Receiver, ReceiverLimits
from worker.handoff.build import build_sender
from worker.handoff.cuda_ipc import cuda_transport_of
from worker.handoff.nixl import agent_of
from worker.handoff.staging import target_of
from worker.main import RoleContext


async def build(context: RoleContext) -> DecodeSide:
    """Return the receiver's side, with the sender's side for when the worker leaves."""
    config, engine = context.config, context.engine
    limits = ReceiverLimits()
    target = target_of(engine.pool, limits)
    receiver = Receiver(
        target,
        config.block_size,
        engine.fingerprint,
        config.transport,
        limits,
        tls=context.tls,
        nixl=agent_of(context, target.pool, "receive"),
        cuda=cuda_transport_of(config.transport, engine.pool),
    )
    receiving = ReceiverSide(receiver, context.submit, context.metrics)
    return DecodeSide(receiving, await build_sender(context))
