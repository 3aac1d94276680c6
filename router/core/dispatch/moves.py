"""A group on its way from one decode worker to another.

    COPYING     its full blocks are copied while it runs on
    STOPPING    the source was told to stop it, and has not reported that it did

The source stops it before anybody else may start it, and until it has it is the one that decodes. What it
reports before it says so is delivered, and the target goes on behind that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.core.actions import SendCancel

if TYPE_CHECKING:
    from router.core.session.session import Group
    from router.core.state import RouterState


@dataclass(slots=True, eq=False)
class Move:
    """Both ends by worker key."""

    group: Group
    source: str
    target: str
    copying: set[int] = field(default_factory=set)
    """Handles of the copies under way."""
    parts: dict[int, int] = field(default_factory=dict)
    """By choice, the handle it goes on under; once the source was told to stop."""


def call_off(state: RouterState, move: Move) -> None:
    """Nothing is copied or offered for it any more. The group stays as it is."""
    parts = tuple(move.parts.values())
    for worker in state.fleet.alive((move.source, move.target)):
        for handle in move.copying:
            worker.copies.pop(handle, None)
        handles = (*sorted(move.copying), *(parts if worker.key == move.source else ()))
        if handles:
            state.do(SendCancel(worker.key, handles))
    move.copying.clear()
