"""Carries faults out on the arena, lets them last, and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from tests.chaos.arena import Arena
from tests.chaos.links import BOTH_WAYS, Way
from tests.chaos.plan import ENDS, LIMIT_KINDS, MESSAGE_KINDS, Fault, Kind, Lane, Phase, Place
from tests.chaos.tally import Tally
from tests.chaos.watch import LASTING, Aim, Hit

STOPPED_S = (0.3, 0.3, 0.3, 7.0)
"""Shorter and longer than it takes to notice: who wakes late may find that all went on without it."""
HALF_OPEN_S = (0.5, 0.5, 0.5, 7.0)
LIMITED_S = (0.2, 1.0)
BLOCKED_S = 2.5
"""Recordings are written once a second."""
DELAYS_S = (0.01, 0.05, 0.2)
DELAYED_S = 0.2
JUMPS_S = (-86_400.0, -20.0, -0.5, 0.5, 20.0, 3600.0)
LATER_S = 0.02
FAULTS_PER_STREAM = 0.6
ARMED_S = 3.0
"""Then the moment did not come: the next fault is tried."""
ARMED_AGAIN_S = 15.0
"""The same for a second fault, whose request may rest meanwhile."""
BACK_S = 5.0
"""To be connected again; who takes longer, Redis being away, may be struck again before."""


class Pace:
    """So many faults for each stream and no more: of what fails all the time nothing could recover.

    Streams are what a machine's speed decides, so a slow one is struck less often.
    """

    def __init__(self, tally: Tally, crowd: int, max_faults: int) -> None:
        self._tally, self._crowd, self._max_faults = tally, crowd, max_faults
        self._stream_over = asyncio.Event()

    @property
    def over(self) -> bool:
        """True if as many faults have struck as are wanted."""
        return self._tally.num_struck >= self._max_faults

    def on_stream(self) -> None:
        """One has ended."""
        self._stream_over.set()
        self._stream_over = asyncio.Event()

    async def turn(self) -> None:
        """Wait until one more may strike."""
        while self._tally.num_struck > FAULTS_PER_STREAM * (self._tally.streams + self._crowd):
            await self._stream_over.wait()


@dataclass(frozen=True, slots=True)
class _Draw:
    """The part of a fault that chance decides, drawn before it strikes."""

    later_s: float
    delay_s: float
    lasts_s: float
    way: Way
    jump_s: float
    by_call: bool
    """A worker is told to leave by the call `Drain`, not by a signal."""


class Striker:
    """One lane of faults."""

    def __init__(self, arena: Arena, lane: Lane, tally: Tally, pace: Pace) -> None:
        self._arena, self._lane, self._tally, self._pace = arena, lane, tally, pace

    async def run(self, until: float) -> None:
        """One after another, until a time on the monotonic clock or until enough have struck altogether."""
        while time.monotonic() < until and not self._pace.over:
            await self.strike(self._lane.next_faults())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._pace.turn()

    async def strike(self, faults: tuple[Fault, ...]) -> None:
        """Strike when the moment comes, if it comes, then the same request again, and make good.

        The first fault lasts while the second one waits for its moment.
        """
        first, *later = faults
        draws = [self._draw(fault) for fault in faults]
        aim = self._aim(first, draws[0])
        aim.by_http = any(fault.place is Place.GATEWAY for fault in later)
        hit = await self._hit(aim, ARMED_S)
        if hit is None:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._last(first, draws[0], hit))
            for fault, draw in zip(later, draws[1:], strict=True):
                again = self._aim(fault, draw)
                again.only = hit.request_id
                following = await self._hit(again, ARMED_AGAIN_S)
                if following is not None:
                    tasks.create_task(self._last(fault, draw, following))

    def _draw(self, fault: Fault) -> _Draw:
        lane = self._lane
        return _Draw(
            later_s=lane.between(0.0, LATER_S) if fault.phase in (Phase.PREFILL, Phase.HANDOFF) else 0.0,
            delay_s=lane.choice(DELAYS_S),
            lasts_s=_lasts_s(fault, lane),
            way=lane.choice(BOTH_WAYS),
            jump_s=lane.choice(JUMPS_S),
            by_call=lane.choice((True, False)),
        )

    def _aim(self, fault: Fault, draw: _Draw) -> Aim:
        return Aim(fault, lambda name: self._act(fault, name, draw), draw.later_s)

    async def _hit(self, aim: Aim, limit_s: float) -> Hit | None:
        hit = await self._arena.watch.strike(aim, limit_s)
        if hit is not None and aim.fault.kind is not Kind.SLOW_DISK:
            self._tally.add_strike(aim.fault, hit)
        return hit

    def _act(self, fault: Fault, name: str, draw: _Draw) -> None:
        """At once: a message is on its way."""
        if fault.kind in LASTING:
            self._arena.watch.down.add(name)
        if fault.place in ENDS:
            self._act_between(fault, name, draw)
        else:
            self._act_at(fault, name, draw)

    def _act_between(self, fault: Fault, pair: str, draw: _Draw) -> None:
        match fault.kind:
            case Kind.CUT:
                self._tally.add_effect(fault, is_seen=self._arena.cut(pair) > 0)
            case Kind.HALF_OPEN:
                self._arena.part(pair, BOTH_WAYS)
            case _:
                assert fault.kind is Kind.ONE_WAY, "no other kind takes two"
                self._arena.part(pair, (draw.way,))

    def _act_at(self, fault: Fault, name: str, draw: _Draw) -> None:
        arena = self._arena
        match fault.kind:
            case Kind.KILL:
                arena.kill(name)
                if fault.place is Place.ROUTER and fault.phase is Phase.RELAY:
                    arena.links[name].cut()  # what it had sent is lost with it
            case Kind.STOP:
                arena.pause(name)
            case Kind.NO_MEMORY | Kind.NO_FILES | Kind.DISK_FULL:
                arena.limit(name, fault.kind)
            case Kind.SLOW_DISK:
                arena.recordings[name].block()
            case Kind.CUT:
                arena.links[name].cut()
            case Kind.HALF_OPEN:
                arena.links[name].freeze()
            case Kind.DELAY:
                arena.links[name].delay_s = draw.delay_s
            case Kind.DRAIN | Kind.ROLL:
                self._act_on_leaving(fault, name, draw)
            case Kind.CLOCK:
                arena.jump(draw.jump_s)
            case _:
                assert fault.kind in MESSAGE_KINDS, "the proxy does it"

    def _act_on_leaving(self, fault: Fault, name: str, draw: _Draw) -> None:
        if fault.kind is Kind.DRAIN:
            self._arena.leave(name, by_call=draw.by_call)
        else:
            self._arena.begin_replacing(name)

    async def _last(self, fault: Fault, draw: _Draw, hit: Hit) -> None:
        try:
            await self._make_good(fault, draw, hit)
        finally:
            if fault.kind in LASTING:  # or another lane's fault would count as over
                self._arena.watch.down.discard(hit.name)

    async def _make_good(self, fault: Fault, draw: _Draw, hit: Hit) -> None:
        name = hit.name
        match fault.kind:
            case Kind.KILL:
                await self._arena.revive(name)
                await self._arena.rejoined(name, BACK_S)
            case Kind.STOP:
                await asyncio.sleep(draw.lasts_s)
                self._arena.resume(name)
            case Kind.SLOW_DISK:
                await asyncio.sleep(BLOCKED_S)
                if self._arena.recordings[name].release():
                    self._tally.add_strike(fault, hit)
            case Kind.HALF_OPEN | Kind.ONE_WAY if fault.place in ENDS:
                await asyncio.sleep(draw.lasts_s)
                self._tally.add_effect(fault, is_seen=self._arena.join(name) > 0)
            case Kind.HALF_OPEN:
                await asyncio.sleep(draw.lasts_s)
                self._arena.links[name].heal()
            case Kind.DELAY:
                await asyncio.sleep(DELAYED_S)
                self._arena.links[name].delay_s = 0.0
            case Kind.DRAIN:
                self._tally.add_effect(fault, is_seen=await self._has_left(name))
                await self._arena.revive(name)
                await self._arena.rejoined(name, BACK_S)
            case Kind.ROLL:
                self._tally.add_effect(fault, is_seen=await self._arena.replaced(name))
                self._arena.watch.down.discard(name)
                await self._roll_on(fault, name)
            case Kind.CLOCK:
                self._tally.add_effect(fault, is_seen=await self._arena.has_jumped())
            case _ if fault.kind in LIMIT_KINDS:
                await asyncio.sleep(draw.lasts_s)
                self._arena.unlimit(name)
            case _:
                pass

    async def _has_left(self, name: str) -> bool:
        """Return whether a process that was told to leave ended in order; one that does not end is killed."""
        try:
            return await self._arena.has_left(name)
        except TimeoutError:
            self._tally.add_leaks({f"drains of {name}": 1}, "a process that was told to leave has not left")
            self._arena.kill(name)
            return False

    async def _roll_on(self, fault: Fault, first: str) -> None:
        """Replace the others of a kind, each when all others serve."""
        for name in self._arena.watch.others(fault, first):
            if not self._arena.watch.may_leave(fault, name):
                continue
            self._arena.watch.down.add(name)
            try:
                self._arena.begin_replacing(name)
                self._tally.add_effect(fault, is_seen=await self._arena.replaced(name))
            finally:
                self._arena.watch.down.discard(name)


def _lasts_s(fault: Fault, lane: Lane) -> float:
    if fault.kind in LIMIT_KINDS:
        return lane.between(*LIMITED_S)
    return lane.choice(STOPPED_S if fault.kind is Kind.STOP else HALF_OPEN_S)
