"""Plans which fault strikes which process or link in which phase of a request: pure and seeded."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The kinds of fault."""

    KILL = "kill"
    STOP = "stop"
    """SIGSTOP, and woken late."""
    NO_MEMORY = "no-memory"
    """The kernel gives the process no more of it."""
    NO_FILES = "no-files"
    """It may open no descriptor: no socket, no shared memory, no file."""
    DISK_FULL = "disk-full"
    """Nothing can be written to files: logs, what is kept for the next start."""
    SLOW_DISK = "slow-disk"
    """Nobody reads what a router records, until the router waits."""
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
    """The target of a fault: a process, or the link to it."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    REDIS = "redis"
    GATEWAY = "gateway"
    """Strikes streams over HTTP alone."""


LIMIT_KINDS = (Kind.NO_MEMORY, Kind.NO_FILES, Kind.DISK_FULL)
MESSAGE_KINDS = (Kind.DROP, Kind.DUPLICATE, Kind.REORDER, Kind.CORRUPT)

AT_WORK: Mapping[Phase, tuple[Place, ...]] = {
    Phase.TOKENISE: (Place.ROUTER, Place.REDIS, Place.GATEWAY),
    Phase.QUEUE: (Place.ROUTER, Place.REDIS, Place.PREFILL, Place.DECODE, Place.GATEWAY),
    Phase.PREFILL: (Place.ROUTER, Place.PREFILL, Place.DECODE, Place.REDIS, Place.GATEWAY),
    Phase.HANDOFF: (Place.ROUTER, Place.PREFILL, Place.DECODE, Place.REDIS, Place.GATEWAY),
    Phase.DECODE: (Place.ROUTER, Place.DECODE, Place.REDIS, Place.GATEWAY),
    Phase.RELAY: (Place.ROUTER, Place.DECODE, Place.GATEWAY),
}
"""The processes a request depends on in each phase."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One way to strike."""

    kind: Kind
    phase: Phase
    place: Place

    def __str__(self) -> str:
        return f"{self.kind} of {self.place} in {self.phase}"


def _can_occur(kind: Kind, phase: Phase, place: Place) -> bool:
    if place is Place.GATEWAY:
        # No link: to a gateway a connection that breaks is a caller who has left.
        return kind in (Kind.KILL, Kind.STOP, *LIMIT_KINDS)
    if kind is Kind.CORRUPT:
        # What carries a checksum of its own; all else is TCP's, and with --secure TLS's, to keep.
        return place is Place.PREFILL and phase in (Phase.PREFILL, Phase.HANDOFF)
    if kind in MESSAGE_KINDS:
        # Streams of many messages: to clients an index tells of a gap, and Redis is asked and answers.
        return place in (Place.PREFILL, Place.DECODE)
    if kind is Kind.SLOW_DISK:
        return place is Place.ROUTER  # only they record
    if kind in LIMIT_KINDS:
        return place is not Place.REDIS  # how Redis bears that is Redis' business
    return True


ALL = tuple(
    Fault(kind, phase, place)
    for kind in Kind
    for phase, places in AT_WORK.items()
    for place in places
    if _can_occur(kind, phase, place)
)


class Lane:
    """Faults that follow one another; several lanes strike at once, each with kinds of its own.

    What it plans depends on the seed and on what had struck before the run, and on nothing that happens.
    """

    def __init__(
        self, seed: int, name: str, kinds: Sequence[Kind], before: Mapping[tuple[Kind, Phase], int]
    ) -> None:
        self.name = name
        self._rng = random.Random(f"{seed} {name}")
        self._faults = [entry for entry in ALL if entry.kind in kinds]
        self._planned = Counter(before)

    def next_fault(self) -> Fault:
        """One of those whose kind and phase come least often so far, by chance among these."""
        least = min(self._planned[fault.kind, fault.phase] for fault in self._faults)
        chosen = self._rng.choice(
            [fault for fault in self._faults if self._planned[fault.kind, fault.phase] == least]
        )
        self._planned[chosen.kind, chosen.phase] += 1
        return chosen

    def between(self, low: float, high: float) -> float:
        """Drawn from the lane's own chance."""
        return self._rng.uniform(low, high)

    def choice(self, among: Sequence[float]) -> float:
        """One of these, by the lane's own chance."""
        return self._rng.choice(among)


LANES: Mapping[str, tuple[Kind, ...]] = {
    "kills 1": (Kind.KILL,),
    "kills 2": (Kind.KILL,),
    "hangs": (Kind.STOP, Kind.HALF_OPEN),
    "limits": (*LIMIT_KINDS, Kind.SLOW_DISK),
    "delays": (Kind.DELAY,),
    "corruption": (Kind.CORRUPT,),
    "cuts": (Kind.CUT,),
    "messages 1": (Kind.DROP, Kind.DUPLICATE, Kind.REORDER),
    "messages 2": (Kind.DROP, Kind.DUPLICATE, Kind.REORDER),
}
"""The lanes, which strike at the same time, and their kinds of fault."""
