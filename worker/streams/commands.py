"""The commands of a router: those that start a sequence (`worker/handoff/commands.py`), and all others."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.request import Part
from worker.handoff.commands import StartCommand


@dataclass(frozen=True, slots=True)
class CancelHandles:
    """End these sequences; unknown handles are ignored."""

    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Accept nothing new, finish or hand over what runs, then end."""


@dataclass(frozen=True, slots=True)
class PreCopy:
    """Offer the first full blocks of one choice while the sequence runs on (`lend` in the protocol)."""

    handle: int
    part: Part
    num_blocks: int


@dataclass(frozen=True, slots=True)
class StopAndCopy:
    """Stop a sequence and offer the blocks of each of its choices (`hand_over` in the protocol)."""

    handle: int
    parts: tuple[Part, ...]


RouterCommand = StartCommand | CancelHandles | DrainWorker | PreCopy | StopAndCopy
