"""What a prefill worker is put together from besides its engine."""

from __future__ import annotations

from worker.main import RoleContext
from worker.sender import build_sender
from worker.sender_side import SenderSide


async def build(context: RoleContext) -> SenderSide:
    """The sender's side alone."""
    return await build_sender(context)
