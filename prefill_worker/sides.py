"""The sides of the handoff that a prefill worker has: it computes prompts, and sends their KV."""

from __future__ import annotations

from engine.core.commands import Prefill
from worker.handoff.sides import HandoffSides
from worker.startup.build_sides import HandoffContext, build_receiver
from worker.startup.build_sides import build_sides as build_common_sides

START_COMMANDS = frozenset({Prefill})
"""The ways in which a sequence can start here."""


def build_sides(context: HandoffContext) -> HandoffSides:
    """Return the sides. No sequence is received; only blocks that other workers lend are."""
    receiver = None if context.engine.links is None else build_receiver(context)
    return build_common_sides(context, START_COMMANDS, receiver)
