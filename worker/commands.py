"""The commands of a router: those that start a sequence, and all others.

Those that start one are commands of the engine, with the router's handle in `spec`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.commands import Decode, Prefill, Receive
from scheduling.request import Part


@dataclass(frozen=True, slots=True)
class ReceiveFrom(Receive):
    """Receive a sequence from the worker whose KVTransferService listens at `source_address`."""

    source_address: str = ""


StartCommand = Prefill | Decode | ReceiveFrom
START_NAMES: dict[type[StartCommand], str] = {Prefill: "prefill", Decode: "decode", ReceiveFrom: "receive"}
"""Their names in the protocol."""


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
