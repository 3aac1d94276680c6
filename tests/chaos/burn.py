"""A fleet burnt for a while: streams all the time, and faults of all kinds at once among them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.errors import BatonError
from baton.fleet.processes.events import ProcessDied
from baton.types import Choice
from runtime.state.errors import StoreUnavailable
from tests.chaos.arena import GATEWAYS, ROUTERS, WORKERS, Arena
from tests.chaos.http_streams import run_http
from tests.chaos.ids import UsedIds
from tests.chaos.leaks import AtRest, Gauges, Growth, Orphans, gauges, held, holds
from tests.chaos.network import Network
from tests.chaos.plan import LANES, Kind, Lane
from tests.chaos.redis_clock import can_jump
from tests.chaos.sightings import Life
from tests.chaos.streams import SLOW_EVERY, Ask, Course, Outcome, asks, run
from tests.chaos.strikes import Pace, Striker
from tests.chaos.tally import Tally

NUM_ASKS = 16
CROWD = 12
"""Streams at any time."""
HTTP_SHARE = 0.5
SEEDED_SHARE = 0.7
AT_FIRST = 4
LEARNING_TRIES = 3
"""A machine that starves makes attempts fail by itself."""
SETTLED_S = 60.0
"""Tasks and descriptors of broken connections are gone by then."""
WAVE_S = 60.0
"""Between two looks for leaks."""
ORPHANS_EVERY_S = 1.0
PLACEMENTS = ("disaggregated", "conditional")
"""By seed."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The settings of one run."""

    seed: int
    seconds: float
    max_faults: int = 10**9
    lanes: Sequence[str] = tuple(LANES)

    @property
    def placement(self) -> str:
        """The placement of requests, which alternates with the seed."""
        return PLACEMENTS[(self.seed + 1) % len(PLACEMENTS)]


def planned(orders: Orders, before: Tally) -> list[Lane]:
    """Return the lanes with the faults that this machine can carry out.

    What has struck least in the tally of `before` comes first.
    """
    kinds = {
        name: [kind for kind in LANES[name] if kind is not Kind.CLOCK or can_jump()] for name in orders.lanes
    }
    return [
        Lane(orders.seed, name, kinds[name], before.struck, before.pairs)
        for name in orders.lanes
        if kinds[name]
    ]


async def burn(
    run_dir: Path,
    orders: Orders,
    before: Tally,
    tally: Tally,
    say: Callable[[str], None],
    network: Network | None = None,
) -> None:
    """Strike until the time is over or so many faults have struck; `tally` grows meanwhile."""
    lanes = planned(orders, before)
    async with Arena(run_dir, orders.placement, network) as arena:
        pace = Pace(tally, CROWD, orders.max_faults)
        battle = Battle(arena, orders, tally, pace, say)
        await battle.learn()
        strikers = [Striker(arena, lane, tally, pace) for lane in lanes]
        began = time.monotonic()
        end = began + orders.seconds
        try:
            while time.monotonic() < end and not pace.over:
                await battle.wave(strikers, min(end, time.monotonic() + WAVE_S))
                await battle.rest()
        finally:
            tally.minutes += (time.monotonic() - began) / 60


class Battle:
    """One arena, its requests, and what they gave when nothing happened."""

    def __init__(
        self, arena: Arena, orders: Orders, tally: Tally, pace: Pace, say: Callable[[str], None]
    ) -> None:
        self._arena, self._orders, self._tally, self._pace, self._say = arena, orders, tally, pace, say
        self._rng = random.Random(orders.seed)
        self._asks = asks(self._rng, NUM_ASKS)
        self._expected: list[Sequence[Choice]] = []
        self._growth = Growth()
        self._orphans = Orphans()
        self._used = UsedIds(self._rng)
        self._began = time.monotonic()
        arena.on_death = self._on_death

    async def learn(self) -> None:
        """The undisturbed run of each request."""
        few = asyncio.Semaphore(AT_FIRST)
        self._expected += await asyncio.gather(*(self._learn_one(ask, few) for ask in self._asks))

    async def _learn_one(self, ask: Ask, few: asyncio.Semaphore) -> Sequence[Choice]:
        async with few:
            for _ in range(LEARNING_TRIES):
                course = Course(ask)
                await run(self._arena.client, None, course)
                if course.outcome is Outcome.SAME:
                    return course.choices
        raise AssertionError(f"undisturbed, a stream was {course.outcome}: {course.why}")

    async def wave(self, strikers: Sequence[Striker], until: float) -> None:
        """Streams and strikes; ends when both have."""
        striking = asyncio.gather(*(striker.run(until) for striker in strikers))
        guarding = asyncio.create_task(self._guard())
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CROWD):
                    tasks.create_task(self._crowd(striking))
                await striking
        finally:
            striking.cancel()
            guarding.cancel()

    async def _guard(self) -> None:
        """Look for holds that nobody needs any more."""
        while True:
            await asyncio.sleep(ORPHANS_EVERY_S)
            with contextlib.suppress(StoreUnavailable):
                found = await holds(self._arena.redis.url)
                lives = self._arena.watch.lives
                self._tally.add_leaks(self._orphans.look(found, lives, time.monotonic()), self._where())

    async def _crowd(self, striking: asyncio.Future[list[None]]) -> None:
        while not striking.done():
            await self._stream()
            self._say(
                f"{self._tally.num_struck} faults, {self._tally.streams} streams, {self._tally.bad} bad"
            )

    async def _stream(self) -> None:
        course, expected = self._next()
        lives = self._arena.watch.lives
        lives[course.request_id] = Life()
        try:
            if course.by_http:
                await run_http(self._arena, expected, course)
            else:
                await run(self._arena.client, expected, course)
        finally:
            self._arena.watch.end(course.request_id)
        now = time.monotonic()
        self._orphans.end(course.request_id, now)
        self._used.add(course, now)
        self._tally.add_stream(course, self._where())
        self._pace.on_stream()

    def _next(self) -> tuple[Course, Sequence[Choice]]:
        """Return a stream and what it is to give: of a new request, or of an old one with its id."""
        used = self._used.draw(time.monotonic(), self._arena.watch.lives)
        if used is not None:
            old = used.course
            self._tally.again["forgotten" if used.is_forgotten else "soon"] += 1
            course = Course(
                old.ask,
                old.request_id,
                slow=old.slow,
                by_http=old.by_http,
                is_seeded=old.is_seeded,
                is_again=True,
            )
            return course, old.choices
        number = self._rng.randrange(len(self._asks))
        course = Course(
            self._asks[number],
            uuid.UUID(int=self._rng.getrandbits(128)).hex,
            slow=self._rng.random() < 1 / SLOW_EVERY,
            by_http=self._rng.random() < HTTP_SHARE,
            is_seeded=self._rng.random() < SEEDED_SHARE,
        )
        return course, self._expected[number]

    def _where(self) -> str:
        """In which run, and when in it: the services' logs tell the time of day."""
        minutes, of_day = (time.monotonic() - self._began) / 60, time.strftime("%H:%M:%S", time.gmtime())
        return f"seed {self._orders.seed}, minute {minutes:.1f}, {of_day} UTC"

    def _on_death(self, death: ProcessDied, in_need: bool) -> None:
        self._tally.add_death(death.name, death.exit_code, in_need=in_need, told=death.tail[-300:])

    async def _held(self) -> dict[str, float]:
        try:
            return await held(self._arena.fleet.router_addresses, self._arena.redis.url)
        except (BatonError, StoreUnavailable):
            return {"silence of a router or Redis": 1}

    async def _settled(self, name: str) -> Gauges | OSError:
        """Return what a process holds once it holds no more than before, or has had its time.

        An error: it does not say.
        """
        process = self._arena.fleet.process(name)
        end = time.monotonic() + SETTLED_S
        try:
            now = await gauges(process)
            while self._growth.grown(name, now) and time.monotonic() < end:
                await asyncio.sleep(0.2)
                now = await gauges(process)
        except OSError as error:
            return error
        return now

    async def rest(self) -> None:
        """Nothing runs: all must come back.

        One stream comes before: places of routers that died leave the queue when the next request is granted.
        """
        await self._stream()
        where = self._where()
        at_rest = AtRest(time.monotonic())
        while found := await self._held():
            overdue = at_rest.overdue(found, time.monotonic())
            if overdue:
                self._tally.add_leaks(overdue, where)
                break
            await asyncio.sleep(0.2)
        names = (*GATEWAYS, *ROUTERS, *WORKERS)
        for name, settled in zip(names, await asyncio.gather(*map(self._settled, names)), strict=True):
            if isinstance(settled, OSError):
                self._tally.add_leaks({f"silence of {name}'s metrics": 1}, f"{settled!r}, {where}")
            else:
                self._tally.add_leaks(self._growth.look(name, settled), where)
        flat = self._growth.flattest()
        if flat:
            self._say(
                f"memory against when warm: { ({name: round(share, 3) for name, share in flat.items()}) }"
            )
