"""Strikes at the moment a message passes: nothing is counted that struck nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core.model.session import MAX_ATTEMPTS, MAX_LOST
from tests.chaos.plan import ENDS, LEAVING, LIMIT_KINDS, MESSAGE_KINDS, Fault, Kind, Phase, Place, ends
from tests.chaos.sightings import Life, Mark, Sighting

VETERANS = frozenset(("router-1", "prefill-2", "decode-2", "gateway-1"))
"""Never killed, so that what leaks slowly has the time to."""
DEADLY = (Kind.KILL, Kind.NO_MEMORY, *LEAVING)
LASTING = (Kind.KILL, Kind.STOP, Kind.HALF_OPEN, Kind.ONE_WAY, Kind.SLOW_DISK, *LIMIT_KINDS, *LEAVING)
"""The faults after which a process does not serve, or cannot be reached, for a while."""
HARMLESS = (Kind.DELAY, Kind.CORRUPT, Kind.DISK_FULL)
"""No attempt fails of these."""
AT_WORKERS = frozenset(
    place for place in Place if {Place.PREFILL, Place.DECODE} & {place, *ENDS.get(place, ())}
)
OWN_FAILURES = (Kind.NO_MEMORY, Kind.NO_FILES)
"""A worker that lives on fails the attempts itself."""
SPARED_FROM_ATTEMPT = MAX_ATTEMPTS - 1
"""Where attempts fail at workers that live on: a request whose last attempt fails so at one router ends,
clearly, as it should, and then nothing could be compared. The one between is for what struck a link before it
was dispatched there, and is noticed later."""
SPARED_WHEN_LOST_FROM = MAX_LOST - 1
"""The same where workers are lost, over all attempts of a request at whichever routers."""
BLOCK_BYTES = 4096
"""Pieces of blocks are larger, and only they have a checksum."""
STALLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault strikes: as one of these passes, before it is through or after."""

    marks: tuple[Mark, ...]
    before: bool
    phase: Phase | None = None
    """The request's, where the mark does not tell."""


_MOMENTS: Mapping[tuple[Phase, Place | None], Moment] = {
    (Phase.TOKENISE, None): Moment((Mark.ASKED,), before=False),
    (Phase.QUEUE, None): Moment((Mark.ACCEPTED,), before=False),
    (Phase.QUEUE, Place.PREFILL): Moment((Mark.BOUND,), before=True),
    (Phase.QUEUE, Place.ROUTER_PREFILL): Moment((Mark.BOUND,), before=True),
    (Phase.QUEUE, Place.DECODE): Moment((Mark.EXPECTED,), before=True),
    (Phase.QUEUE, Place.ROUTER_DECODE): Moment((Mark.EXPECTED,), before=True),
    (Phase.PREFILL, None): Moment((Mark.BOUND,), before=False),
    (Phase.PREFILL, Place.DECODE): Moment((Mark.EXPECTED,), before=False),
    (Phase.PREFILL, Place.ROUTER_DECODE): Moment((Mark.EXPECTED,), before=False),
    (Phase.HANDOFF, None): Moment((Mark.COMMITTED,), before=False),
    (Phase.DECODE, None): Moment((Mark.REPORTED,), before=True, phase=Phase.DECODE),
    (Phase.RELAY, None): Moment((Mark.REPORTED,), before=True, phase=Phase.DECODE),
}
"""By phase, and by place where that has one of its own."""
_OF_MESSAGES: Mapping[tuple[Phase, Place | None], Moment] = {
    (Phase.PREFILL, Place.PREFILL): Moment((Mark.FIRST,), before=True, phase=Phase.PREFILL),
    (Phase.PREFILL, Place.DECODE): Moment((Mark.WORKED,), before=True, phase=Phase.PREFILL),
    (Phase.HANDOFF, Place.PREFILL): Moment((Mark.COMMITTED,), before=True),
    (Phase.HANDOFF, Place.DECODE): Moment((Mark.REPORTED, Mark.WORKED), before=True, phase=Phase.HANDOFF),
}
"""The same for what strikes the message itself."""


def moment(fault: Fault) -> Moment:
    """In which a request is in the fault's phase and depends on its place."""
    if fault.kind is Kind.CORRUPT:
        return Moment((Mark.FETCHED,), before=True, phase=fault.phase)
    key = fault.phase, fault.place
    found = _OF_MESSAGES.get(key) if fault.kind in MESSAGE_KINDS else None
    if found is not None and fault.kind is Kind.REORDER and found.marks == (Mark.COMMITTED,):
        return Moment((Mark.OFFERED,), before=True)  # has the commit after it, which can overtake it
    return found or _MOMENTS.get(key) or _MOMENTS[fault.phase, None]


def _is_due(fault: Fault, one: Sighting, life: Life, *, before: bool) -> bool:
    due = moment(fault)
    of_an_older_attempt = one.mark in (Mark.WORKED, Mark.REPORTED) and one.link != life.decode
    on_another_link = fault.kind in MESSAGE_KINDS and one.link != life.at(fault.place)
    return (
        one.mark in due.marks
        and before == due.before
        and due.phase in (None, life.phase)
        and not of_an_older_attempt
        and not (on_another_link and fault.phase is not Phase.QUEUE)
    )


@dataclass(frozen=True, slots=True)
class Hit:
    """The role that was struck, and its process or link."""

    request_id: str
    name: str
    at: float


@dataclass(eq=False)
class Aim:
    """A fault that waits for its moment. `act` carries it out at once on the process or link it is given."""

    fault: Fault
    act: Callable[[str], None]
    later_s: float
    """After the moment: where in a step it strikes is chance."""
    hit: asyncio.Future[Hit | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    only: str = ""
    """The one request that it may strike."""
    by_http: bool = False
    """It strikes streams over HTTP alone."""
    relayed: str = ""
    """The request whose tokens are kept from its client, so that they are in the relay when it strikes."""


class Watch:
    """Every message is shown to it before it passes and afterwards."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.down: set[str] = set()
        """The processes that do not serve now, and the pairs between which something is lost."""
        self.peers: dict[Place, tuple[str, ...]] = {}
        self._aims: list[Aim] = []
        self._stalled: dict[str, asyncio.Event] = {}

    async def strike(self, aim: Aim, limit_s: float) -> Hit | None:
        """Return what was struck; None if no moment came."""
        self._aims.append(aim)
        try:
            async with asyncio.timeout(limit_s):
                return await aim.hit
        except TimeoutError:
            # It may have struck in the very moment.
            return aim.hit.result() if not aim.hit.cancelled() else None
        finally:
            if aim in self._aims:
                self._aims.remove(aim)
            self._let_go(aim.relayed)

    def end(self, request_id: str) -> None:
        """The stream is over, and what waits to strike it waits no more."""
        del self.lives[request_id]
        for aim in self._aims:
            if aim.only == request_id and not aim.hit.done():
                aim.hit.set_result(None)

    def others(self, fault: Fault, name: str) -> list[str]:
        """Return the others of a struck process's kind that may be struck as well."""
        return [peer for peer in self.peers[fault.place] if peer != name and peer not in VETERANS]

    def may_leave(self, fault: Fault, name: str) -> bool:
        """Return whether others go on if this one is struck too."""
        return self._others_go_on(fault, name)

    async def passage(self, seen: Sequence[Sighting]) -> None:
        """Wait while what comes to a client is to stay in the relay."""
        for sample in seen:
            stalled = self._stalled.get(sample.request_id)
            if sample.mark is Mark.DELIVERED and stalled is not None:
                await stalled.wait()

    def coming(self, seen: Sequence[Sighting], size: int) -> Kind | None:
        """Before it passes; what is to become of it, if it is itself struck."""
        for aim in list(self._aims):
            if aim.fault.kind is Kind.CORRUPT and size < BLOCK_BYTES:
                continue
            for sample in seen:
                if self._is_moment(aim, sample, before=True) and self._fire(aim, sample):
                    return aim.fault.kind if aim.fault.kind in MESSAGE_KINDS else None
        return None

    def passed(self, seen: Sequence[Sighting]) -> None:
        """It is through."""
        for sample in seen:
            life = self.lives.get(sample.request_id)
            if life is not None:
                life.advance(sample)
        for aim in list(self._aims):
            for sample in seen:
                if self._is_moment(aim, sample, before=False):
                    self._fire_soon(aim, sample)
                    break

    def _is_moment(self, aim: Aim, one: Sighting, *, before: bool) -> bool:
        life = self.lives.get(one.request_id)
        if life is None or not _is_due(aim.fault, one, life, before=before):
            return False
        if aim.only not in ("", one.request_id) or (aim.by_http and not life.gateway):
            return False
        if aim.fault.phase is Phase.RELAY and not aim.relayed:
            self._stall(aim, one.request_id)
            return False
        return aim.relayed in ("", one.request_id)

    def _stall(self, aim: Aim, request_id: str) -> None:
        if request_id in self._stalled:
            return
        aim.relayed = request_id
        self._stalled[request_id] = asyncio.Event()
        asyncio.get_running_loop().call_later(STALLED_S, self._give_up, aim, request_id)

    def _give_up(self, aim: Aim, request_id: str) -> None:
        if aim.relayed == request_id:
            aim.relayed = ""
            self._let_go(request_id)

    def _let_go(self, request_id: str) -> None:
        stalled = self._stalled.pop(request_id, None)
        if stalled is not None:
            stalled.set()

    def _fire_soon(self, aim: Aim, one: Sighting) -> None:
        if aim.later_s > 0:
            asyncio.get_running_loop().call_later(aim.later_s, self._fire_late, aim, one)
        else:
            self._fire(aim, one)

    def _fire_late(self, aim: Aim, one: Sighting) -> None:
        life = self.lives.get(one.request_id)
        if life is not None and life.phase is aim.fault.phase:
            self._fire(aim, one)

    def _fire(self, aim: Aim, one: Sighting) -> bool:
        place = aim.fault.place
        # What is on its way to a worker is not there yet.
        on_its_way = aim.fault.phase is Phase.QUEUE and place in AT_WORKERS
        name = self.lives[one.request_id].at(place, one.link if on_its_way else "")
        if aim not in self._aims or aim.hit.done() or not self._may(aim.fault, name):
            return False
        self._aims.remove(aim)
        aim.act(name)
        aim.hit.set_result(Hit(one.request_id, name, time.monotonic()))
        return True

    def _may(self, fault: Fault, name: str) -> bool:
        """Return whether the fleet can bear it: some of each kind must go on, and attempts are bounded."""
        if not name or (fault.kind in DEADLY and name in VETERANS):
            return False
        if fault.kind in LASTING and not self._others_go_on(fault, name):
            return False
        if fault.kind in HARMLESS or fault.place not in AT_WORKERS:
            return True
        caller, target = ends(name)
        there = [
            life
            for life in self.lives.values()
            if target in (life.prefill, life.decode) and caller in ("", life.router, life.decode)
        ]
        return not any(_is_spared(life, fault.kind) for life in there)

    def _others_go_on(self, fault: Fault, name: str) -> bool:
        target = ends(name)[1]
        _, place = ENDS.get(fault.place, (None, fault.place))
        away = {ends(entry)[1] for entry in self.down}
        others = [peer for peer in self.peers[place] if peer != target and peer not in away]
        return target not in away and bool(others or len(self.peers[place]) == 1)


def _is_spared(life: Life, kind: Kind) -> bool:
    """Return True if the promises would not cover another failure of this kind."""
    if kind in OWN_FAILURES and len(life.attempts) >= SPARED_FROM_ATTEMPT:
        return True
    return life.failed_before + len(life.attempts) >= SPARED_WHEN_LOST_FROM
