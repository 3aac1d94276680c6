"""What can go wrong, to whom, and when in the life of a request: pure, seeded, and told by name."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What happens."""

    KILL = "kill"
    STOP = "stop"
    """SIGSTOP, and woken late."""
    CUT = "cut"
    """Every connection of a link breaks."""
    HALF_OPEN = "half-open"
    """The link stands, and nothing comes through any more."""
    DELAY = "delay"
    DROP = "drop"
    """One message never arrives, and those after it do."""
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    """A byte of a message of KV blocks, where the transport would not notice."""


class Phase(enum.StrEnum):
    """Where the struck request is."""

    TOKENISE = "tokenise"
    QUEUE = "queue"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"
    RELAY = "relay"


class Place(enum.StrEnum):
    """Who is struck: a process, or the link to it."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    REDIS = "redis"


PROCESS_KINDS = (Kind.KILL, Kind.STOP)
LINK_KINDS = (Kind.CUT, Kind.HALF_OPEN, Kind.DELAY)
MESSAGE_KINDS = (Kind.DROP, Kind.DUPLICATE, Kind.REORDER)

AT_WORK: Mapping[Phase, tuple[Place, ...]] = {
    Phase.TOKENISE: (Place.ROUTER, Place.REDIS),
    Phase.QUEUE: (Place.ROUTER, Place.REDIS, Place.PREFILL, Place.DECODE),
    Phase.PREFILL: (Place.ROUTER, Place.PREFILL, Place.DECODE, Place.REDIS),
    Phase.HANDOFF: (Place.ROUTER, Place.PREFILL, Place.DECODE, Place.REDIS),
    Phase.DECODE: (Place.ROUTER, Place.DECODE, Place.REDIS),
    Phase.RELAY: (Place.ROUTER, Place.DECODE),
}
"""Who a request depends on in each phase."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One way to strike."""

    kind: Kind
    phase: Phase
    place: Place

    def __str__(self) -> str:
        return f"{self.kind} of {self.place} in {self.phase}"


def _can_occur(kind: Kind, phase: Phase, place: Place) -> bool:
    if kind is Kind.CORRUPT:
        # What carries a checksum of its own; all else is TCP's, and with --secure TLS's, to keep.
        return place is Place.PREFILL and phase in (Phase.PREFILL, Phase.HANDOFF)
    if kind in MESSAGE_KINDS:
        # Streams of many messages: to clients an index tells of a gap, and Redis is asked and answers.
        return place in (Place.PREFILL, Place.DECODE)
    return True


ALL = tuple(
    Fault(kind, phase, place)
    for kind in Kind
    for phase, places in AT_WORK.items()
    for place in places
    if _can_occur(kind, phase, place)
)


def next_fault(
    struck: Mapping[tuple[Kind, Phase], int], rng: random.Random, of: Sequence[Fault] = ALL
) -> Fault:
    """One of the faults whose kind and phase have struck least often so far, by chance among these."""
    least = min(struck.get((one.kind, one.phase), 0) for one in of)
    return rng.choice([one for one in of if struck.get((one.kind, one.phase), 0) == least])
