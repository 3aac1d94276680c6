"""The sides of the handoff that a decode worker has: it receives sequences, and sends those that move on."""

from __future__ import annotations

from decode_worker.receiver_side import ReceiverSide
from engine.core.commands import Decode
from worker.commands import ReceiveFrom
from worker.handoff.sides import HandoffSides
from worker.startup.build_sides import HandoffContext, build_receiver
from worker.startup.build_sides import build_sides as build_common_sides

START_COMMANDS = frozenset({ReceiveFrom, Decode})
"""The ways in which a sequence can start here."""


def build_sides(context: HandoffContext) -> HandoffSides:
    """Return the sides. A sequence that runs here can move to another worker, so this one also sends."""
    receiver = build_receiver(context)
    receiving = ReceiverSide(receiver, context.submit, context.metrics)
    return build_common_sides(context, START_COMMANDS, receiver, receiving)
