"""Commands for workers."""

from __future__ import annotations

from scheduling.request import Part, ReceiveKind, SequenceSpec
from scheduling.value import value


@value
class SendPrefill:
    worker_key: str
    spec: SequenceSpec


@value
class SendReceive:
    worker_key: str
    spec: SequenceSpec
    source_address: str
    kind: ReceiveKind = ReceiveKind.PROMPT


@value
class SendDecode:
    worker_key: str
    spec: SequenceSpec


@value
class SendCancel:
    worker_key: str
    handles: tuple[int, ...]


@value
class SendPreCopy:
    """Offer the first blocks of a choice, which runs on."""

    worker_key: str
    handle: int
    part: Part
    num_blocks: int


@value
class SendStopAndCopy:
    """Stop a group, and offer the blocks of its choices."""

    worker_key: str
    handle: int
    parts: tuple[Part, ...]


@value
class SendDrain:
    worker_key: str


WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)
