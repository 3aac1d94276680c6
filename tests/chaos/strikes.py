"""Carries faults out on the arena, lets them last, and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tests.chaos.arena import Arena
from tests.chaos.plan import LIMIT_KINDS, MESSAGE_KINDS, Fault, Kind, Lane, Phase, Place
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
LATER_S = 0.02
FAULTS_PER_STREAM = 0.6
ARMED_S = 3.0
"""Then the moment did not come: the next fault is tried."""
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


class Striker:
    """One lane of faults."""

    def __init__(self, arena: Arena, lane: Lane, tally: Tally, pace: Pace) -> None:
        self._arena, self._lane, self._tally, self._pace = arena, lane, tally, pace

    async def run(self, until: float) -> None:
        """One after another, until a time on the monotonic clock or until enough have struck altogether."""
        while time.monotonic() < until and not self._pace.over:
            await self.one(self._lane.next_fault())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._pace.turn()

    async def one(self, fault: Fault) -> None:
        """Strike when the moment comes, if it comes, and make good."""
        later_s = self._lane.between(0.0, LATER_S) if fault.phase in (Phase.PREFILL, Phase.HANDOFF) else 0.0
        delay_s = self._lane.choice(DELAYS_S)
        aim = Aim(fault, lambda name: self._act(fault, name, delay_s), later_s)
        hit = await self._arena.watch.strike(aim, ARMED_S)
        if hit is None:
            return
        if fault.kind is not Kind.SLOW_DISK:
            self._tally.add_strike(fault, hit)
        try:
            await self._last(fault, hit)
        finally:
            self._arena.watch.down.discard(hit.name)

    def _act(self, fault: Fault, name: str, delay_s: float) -> None:
        """At once: a message is on its way."""
        if fault.kind in LASTING:
            self._arena.watch.down.add(name)
        match fault.kind:
            case Kind.KILL:
                self._arena.kill(name)
                if fault.place is Place.ROUTER and fault.phase is Phase.RELAY:
                    self._arena.links[name].cut()  # what it had sent is lost with it
            case Kind.STOP:
                self._arena.pause(name)
            case Kind.NO_MEMORY | Kind.NO_FILES | Kind.DISK_FULL:
                self._arena.limit(name, fault.kind)
            case Kind.SLOW_DISK:
                self._arena.recordings[name].block()
            case Kind.CUT:
                self._arena.links[name].cut()
            case Kind.HALF_OPEN:
                self._arena.links[name].freeze()
            case Kind.DELAY:
                self._arena.links[name].delay_s = delay_s
            case _:
                assert fault.kind in MESSAGE_KINDS, "the proxy does it"

    async def _last(self, fault: Fault, hit: Hit) -> None:
        name = hit.name
        match fault.kind:
            case Kind.KILL:
                await self._arena.revive(name)
                await self._arena.rejoined(name, BACK_S)
            case Kind.STOP:
                await asyncio.sleep(self._lane.choice(STOPPED_S))
                self._arena.resume(name)
            case Kind.SLOW_DISK:
                await asyncio.sleep(BLOCKED_S)
                if self._arena.recordings[name].release():
                    self._tally.add_strike(fault, hit)
            case Kind.HALF_OPEN:
                await asyncio.sleep(self._lane.choice(HALF_OPEN_S))
                self._arena.links[name].heal()
            case Kind.DELAY:
                await asyncio.sleep(DELAYED_S)
                self._arena.links[name].delay_s = 0.0
            case _ if fault.kind in LIMIT_KINDS:
                await asyncio.sleep(self._lane.between(*LIMITED_S))
                self._arena.unlimit(name)
            case _:
                pass
