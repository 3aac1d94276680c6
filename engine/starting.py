"""The phases of a worker's start, and how an engine reports its progress while it is built."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Phase(enum.StrEnum):
    """The phases, in this order; a worker skips those that it does not need."""

    IMPORTING = "importing"
    READING = "reading weights"
    """Counted in bytes, which the worker looks up itself."""
    PREPARING = "preparing layers"
    """Quantising them, or choosing the tiles of deterministic products."""
    COMPARING = "comparing with transformers"
    """The proof of a model that is not on the list."""
    GATHERING = "waiting for other processes of the group"
    """Counted in processes that are ready."""
    PROVING = "proving determinism"
    RECORDING = "recording decode steps"
    MEASURING = "measuring steps"
    JOINING = "joining the fleet"


OnProgress = Callable[[Phase, int, int], None]
"""Called with a phase, the amount done and the total; both are 0 if unknown."""


def ignore_progress(phase: Phase, done: int, total: int) -> None:
    """Do nothing: for callers whose progress is not shown."""
