"""Plans which fault strikes which process or link in which phase of a request: pure and seeded."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


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
    ONE_WAY = "one-way"
    """Messages from one of two processes to the other are lost; those from the other arrive."""
    DRAIN = "drain"
    """A process is told to leave, and started again once it has left."""
    ROLL = "roll"
    """The processes of a kind are replaced one after another, as `baton restart` does."""
    CLOCK = "clock"
    """Redis's clock jumps."""


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
    CLIENT_ROUTER = "client-router"
    """The client's own connections to the router; the client may be a gateway."""
    ROUTER_REDIS = "router-redis"
    ROUTER_PREFILL = "router-prefill"
    ROUTER_DECODE = "router-decode"
    DECODE_PREFILL = "decode-prefill"
    """The handoff: the decode worker calls the prefill worker."""


ENDS: Mapping[Place, tuple[Place, Place]] = {
    Place.CLIENT_ROUTER: (Place.GATEWAY, Place.ROUTER),
    Place.ROUTER_REDIS: (Place.ROUTER, Place.REDIS),
    Place.ROUTER_PREFILL: (Place.ROUTER, Place.PREFILL),
    Place.ROUTER_DECODE: (Place.ROUTER, Place.DECODE),
    Place.DECODE_PREFILL: (Place.DECODE, Place.PREFILL),
}
"""The places between two processes, and their ends: the caller, and the process that it has dialled."""


def between(caller: str, target: str) -> str:
    """Return the name of what is between two processes; empty if one of them is."""
    return f"{caller}>{target}" if caller and target else ""


def ends(name: str) -> tuple[str, str]:
    """Return the caller and the target of a name; a process's own name has no caller."""
    caller, _, target = name.rpartition(">")
    return caller, target


LIMIT_KINDS = (Kind.NO_MEMORY, Kind.NO_FILES, Kind.DISK_FULL)
LEAVING = (Kind.DRAIN, Kind.ROLL)
MESSAGE_KINDS = (Kind.DROP, Kind.DUPLICATE, Kind.REORDER, Kind.CORRUPT)

_DOOR = (Place.ROUTER, Place.GATEWAY, Place.CLIENT_ROUTER)
_STORE = (Place.REDIS, Place.ROUTER_REDIS)
_PREFILL = (Place.PREFILL, Place.ROUTER_PREFILL)
_DECODE = (Place.DECODE, Place.ROUTER_DECODE)

AT_WORK: Mapping[Phase, tuple[Place, ...]] = {
    Phase.TOKENISE: (*_DOOR, *_STORE),
    Phase.QUEUE: (*_DOOR, *_STORE, *_PREFILL, *_DECODE),
    Phase.PREFILL: (*_DOOR, *_STORE, *_PREFILL, *_DECODE, Place.DECODE_PREFILL),
    Phase.HANDOFF: (*_DOOR, *_STORE, *_PREFILL, *_DECODE, Place.DECODE_PREFILL),
    Phase.DECODE: (*_DOOR, *_STORE, *_DECODE),
    Phase.RELAY: (*_DOOR, *_DECODE),
}
"""The processes that a request depends on in each phase, and what is between them."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One way to strike."""

    kind: Kind
    phase: Phase
    place: Place

    def __str__(self) -> str:
        return f"{self.kind} of {self.place} in {self.phase}"


def _can_occur(kind: Kind, phase: Phase, place: Place) -> bool:
    if place in ENDS:
        return kind in (Kind.CUT, Kind.HALF_OPEN, Kind.ONE_WAY)
    if place is Place.GATEWAY:
        # No link: to a gateway a connection that breaks is a caller who has left.
        return kind in (Kind.KILL, Kind.STOP, *LIMIT_KINDS, *LEAVING)
    if kind in _PLACES_OF:
        return place in _PLACES_OF[kind] and phase in _PHASES_OF.get(kind, Phase)
    return True


_PLACES_OF: Mapping[Kind, tuple[Place, ...]] = {
    # It has a checksum of its own; all else is TCP's, and with --secure TLS's, to keep.
    Kind.CORRUPT: (Place.PREFILL,),
    # Streams of many messages: to clients an index tells of a gap, and Redis is asked and answers.
    **dict.fromkeys((Kind.DROP, Kind.DUPLICATE, Kind.REORDER), (Place.PREFILL, Place.DECODE)),
    Kind.SLOW_DISK: (Place.ROUTER,),  # only routers record
    # How Redis bears a limit, and leaves, is Redis' business.
    **dict.fromkeys((*LIMIT_KINDS, *LEAVING), (Place.ROUTER, Place.PREFILL, Place.DECODE)),
    Kind.ONE_WAY: (),  # it takes two
    Kind.CLOCK: (Place.REDIS,),
}
"""The processes that a kind of fault may strike, where these are not all."""
_PHASES_OF: Mapping[Kind, tuple[Phase, ...]] = {Kind.CORRUPT: (Phase.PREFILL, Phase.HANDOFF)}


ALL = tuple(
    Fault(kind, phase, place)
    for kind in Kind
    for phase, places in AT_WORK.items()
    for place in places
    if _can_occur(kind, phase, place)
)


Cell = tuple[Kind, Phase]
PairCell = tuple[Cell, Cell]
"""Two faults that struck the same request, in the order of their names."""


def cell(fault: Fault) -> Cell:
    """Return what faults are counted by."""
    return fault.kind, fault.phase


def pair_cell(one: Fault, other: Fault) -> PairCell:
    """Return what pairs of faults are counted by."""
    first, second = sorted((cell(one), cell(other)))
    return first, second


_CALL_BREAKS = (Kind.KILL, Kind.CUT, Kind.HALF_OPEN, Kind.ONE_WAY, Kind.STOP, Kind.NO_MEMORY, *LEAVING)
_ATTEMPT_FAILS = (*_CALL_BREAKS, Kind.NO_FILES, Kind.DROP, Kind.DUPLICATE, Kind.REORDER)
_AT_CALL = (Place.ROUTER, Place.GATEWAY, Place.CLIENT_ROUTER)
_AT_WORKERS = (*_PREFILL, *_DECODE, Place.DECODE_PREFILL)
_GENERATING = (Phase.DECODE, Phase.RELAY)


def can_follow(first: Fault, second: Fault) -> bool:
    """Return whether a request that `first` struck may come to the moment of `second`."""
    if first.place in _AT_CALL and first.kind in _CALL_BREAKS:
        return True  # the request begins anew
    if first.place in _AT_WORKERS and first.kind in _ATTEMPT_FAILS and second.place in _AT_WORKERS:
        return True  # another attempt begins
    if first.phase in _GENERATING:
        return second.phase in _GENERATING
    phases = list(Phase)
    return phases.index(first.phase) < phases.index(second.phase)


def _pairs(faults: Sequence[Fault]) -> Mapping[PairCell, Sequence[tuple[Fault, Fault]]]:
    found: dict[PairCell, list[tuple[Fault, Fault]]] = {}
    for first in faults:
        for second in faults:
            if can_follow(first, second):
                found.setdefault(pair_cell(first, second), []).append((first, second))
    return found


class Lane:
    """Faults that follow one another; several lanes strike at once, each with kinds of its own.

    What it plans depends on the seed and on what had struck before the run, and on nothing that happens.
    """

    def __init__(
        self,
        seed: int,
        name: str,
        kinds: Sequence[Kind],
        before: Mapping[Cell, int],
        pairs_before: Mapping[PairCell, int] | None = None,
    ) -> None:
        self.name = name
        self._rng = random.Random(f"{seed} {name}")
        self._faults = [entry for entry in ALL if entry.kind in kinds]
        self._planned = Counter(before)
        self._pairs = _pairs(self._faults) if name in TWICE else {}
        self._planned_pairs = Counter(pairs_before)
        self._planned_kinds: Counter[tuple[Kind, Kind]] = Counter()
        for ((kind, _), (other, _)), count in self._planned_pairs.items():
            self._planned_kinds[kind, other] += count

    def next_faults(self) -> tuple[Fault, ...]:
        """Return the next fault, or two that are to strike the same request one after the other."""
        return self._next_pair() if self._pairs else (self._next_fault(),)

    def _next_fault(self) -> Fault:
        """One of those whose kind and phase come least often so far, by chance among these."""
        least = min(self._planned[cell(fault)] for fault in self._faults)
        chosen = self._rng.choice([fault for fault in self._faults if self._planned[cell(fault)] == least])
        self._planned[cell(chosen)] += 1
        return chosen

    def _next_pair(self) -> tuple[Fault, Fault]:
        """Choose those kinds, and of these those phases, that came least often, by chance among these."""

        def count(pair: PairCell) -> tuple[int, int]:
            return self._planned_kinds[pair[0][0], pair[1][0]], self._planned_pairs[pair]

        least = min(map(count, self._pairs))
        chosen = self._rng.choice([pair for pair in self._pairs if count(pair) == least])
        self._planned_kinds[chosen[0][0], chosen[1][0]] += 1
        self._planned_pairs[chosen] += 1
        return self._rng.choice(self._pairs[chosen])

    def between(self, low: float, high: float) -> float:
        """Drawn from the lane's own chance."""
        return self._rng.uniform(low, high)

    def choice(self, among: Sequence[T]) -> T:
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
    "one ways": (Kind.ONE_WAY,),
    "leaving": LEAVING,
    "clocks": (Kind.CLOCK,),
    "pairs 1": tuple(Kind),
    "pairs 2": tuple(Kind),
}
"""The lanes, which strike at the same time, and their kinds of fault."""
TWICE = ("pairs 1", "pairs 2")
"""The lanes that strike the same request twice."""
PAIR_CELLS = frozenset(_pairs(ALL))
"""The pairs of faults that can strike one request."""
