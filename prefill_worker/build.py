"""Builds the handoff side of a prefill worker."""

from __future__ import annotations

from worker.handoff.build import build_sender
from worker.handoff.sender_side import SenderSide
from worker.main import RoleContext


async def build(context: RoleContext) -> SenderSide:
    """Return the sender's side alone."""
    return await build_sender(context)
