"""`python -m decode_worker`: fetches KV, runs decode steps, and prefill chunks inside them when told to."""

from __future__ import annotations

import sys

from decode_worker.receiver_side import ReceiverSide
from kvtransfer.receiver import Receiver
from worker.identity import Role
from worker.main import RoleContext, main


async def build(context: RoleContext) -> ReceiverSide:
    """The receiver's side."""
    config, engine = context.config, context.engine
    receiver = Receiver(engine.pool, config.block_size, engine.fingerprint, config.transport)
    return ReceiverSide(receiver, context.submit, context.metrics)


if __name__ == "__main__":
    sys.exit(main(Role.DECODE, build))
