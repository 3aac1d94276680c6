"""What a decode worker is put together from besides its engine."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from decode_worker.sides import DecodeSide
from kvtransfer.receiver import Receiver
from worker.main import RoleContext
from worker.sender import build_sender


async def build(context: RoleContext) -> DecodeSide:
    """The receiver's side, and the sender's where the pool can be offered."""
    config, engine = context.config, context.engine
    receiver = Receiver(engine.pool, config.block_size, engine.fingerprint, config.transport, tls=context.tls)
    receiving = ReceiverSide(receiver, context.submit, context.metrics)
    sending = None if engine.pool.fd is None else await build_sender(context)
    return DecodeSide(receiving, sending)
