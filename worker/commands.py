"""What a router tells a worker, in the worker's words."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from scheduling.request import SequenceSpec


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
    """Of a RECEIVE: where the prefill worker's KVTransferService listens."""


@dataclass(frozen=True, slots=True)
class CancelHandles:
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Take nothing new, let go of what runs, end."""


RouterCommand = Dispatch | CancelHandles | DrainWorker
