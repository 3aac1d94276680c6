"""What a router tells a worker, in the worker's words."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from scheduling.request import Part, ReceiveKind, SequenceSpec


class Task(enum.Enum):
    """What is to be done with a sequence."""

    PREFILL = "prefill"
    RECEIVE = "receive"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run a sequence; its handle is the router's."""

    task: Task
    spec: SequenceSpec
    source_address: str = ""
    """Of a RECEIVE: where the source's KVTransferService listens."""
    kind: ReceiveKind = ReceiveKind.PROMPT


@dataclass(frozen=True, slots=True)
class CancelHandles:
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Take nothing new, let go of what runs, end."""


@dataclass(frozen=True, slots=True)
class LendBlocks:
    """Offer the first full blocks of one choice, which runs on."""

    handle: int
    part: Part
    num_blocks: int


@dataclass(frozen=True, slots=True)
class HandOverSequence:
    """Stop a sequence and offer the blocks of each of its choices."""

    handle: int
    parts: tuple[Part, ...]


RouterCommand = Dispatch | CancelHandles | DrainWorker | LendBlocks | HandOverSequence
