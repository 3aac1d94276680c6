"""What a decode worker is put together from besides its engine."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from kvtransfer.receiver import Receiver
from worker.main import RoleContext


async def build(context: RoleContext) -> ReceiverSide:
    """The receiver's side."""
    config, engine = context.config, context.engine
    receiver = Receiver(engine.pool, config.block_size, engine.fingerprint, config.transport, tls=context.tls)
    return ReceiverSide(receiver, context.submit, context.metrics)
