"""A fleet burnt for a while: streams all the time, and one fault after another among them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from baton import AsyncClient
from baton.types import Choice
from tests.chaos.arena import Arena
from tests.chaos.plan import Fault, Phase, next_fault
from tests.chaos.streams import Ask, Course, asks, run
from tests.chaos.strikes import strike
from tests.chaos.tally import Tally

NUM_ASKS = 12
CROWD = 4
"""Streams besides the victim at any time."""
SETTLED_S = 20.0
"""Leases last ten seconds where nobody renews them; then nothing may be held."""
REST_EVERY = 25
"""Faults between two looks for leaks."""


async def burn(
    run_dir: Path, seed: int, seconds: float, max_faults: int, tally: Tally, say: Callable[[str], None]
) -> None:
    """Strike until the time is over or so many faults have struck; `tally` grows meanwhile."""
    rng = random.Random(seed)
    async with Arena(run_dir) as arena:
        battle = _Battle(arena, asks(rng, NUM_ASKS), tally, f"seed {seed}")
        await battle.learn()
        began, struck = time.monotonic(), 0
        while time.monotonic() - began < seconds and struck < max_faults:
            fault = next_fault(tally.struck, rng)
            struck += await battle.round(fault, rng)
            if struck and struck % REST_EVERY == 0:
                await battle.rest()
            say(f"{struck} faults, {tally.streams} streams, {tally.bad} bad; the last: {fault}")
        await battle.rest()
        tally.minutes += (time.monotonic() - began) / 60


class _Battle:
    """One arena, its requests, and what they gave when nothing happened."""

    def __init__(self, arena: Arena, requests: Sequence[Ask], tally: Tally, where: str) -> None:
        self._arena, self._asks, self._tally, self._where = arena, requests, tally, where
        self._expected: list[Sequence[Choice]] = []

    async def learn(self) -> None:
        """The undisturbed run of each request."""
        for ask in self._asks:
            course = Course(ask)
            await run(self._arena.client, ask, None, course)
            assert course.outcome == "same", f"undisturbed, a stream was {course.outcome}: {course.why}"
            self._expected.append(course.choices)

    async def round(self, fault: Fault, rng: random.Random) -> bool:
        """A crowd and a victim, struck in a phase of its life; whether it was."""
        numbers = [rng.randrange(len(self._asks)) for _ in range(CROWD + 1)]
        courses = [Course(self._asks[number]) for number in numbers]
        async with asyncio.TaskGroup() as tasks:
            for number, course in zip(numbers[1:], courses[1:], strict=True):
                tasks.create_task(self._stream(self._arena.client, number, course))
            struck = await self._strike(fault, rng, tasks, numbers[0], courses[0])
        for course in courses:
            self._tally.add_stream(course, f"{self._where}, {fault}")
        return struck

    async def _strike(
        self, fault: Fault, rng: random.Random, tasks: asyncio.TaskGroup, number: int, victim: Course
    ) -> bool:
        await asyncio.sleep(rng.uniform(0.0, 0.05))  # when in a step it strikes is chance, from the seed
        running = tasks.create_task(self._stream(self._arena.client, number, victim))
        await victim.reached[fault.phase].wait()
        if fault.phase is Phase.RELAY:
            victim.pause.clear()  # what comes now waits in the router
        try:
            async with strike(self._arena, fault, rng) as hit:
                at, struck = time.monotonic(), hit and not running.done()
                victim.pause.set()
                await running
        finally:
            victim.pause.set()
        if struck:
            self._tally.add_strike(fault, victim, at)
        return struck

    async def _stream(self, client: AsyncClient, number: int, course: Course) -> None:
        await run(client, course.ask, self._expected[number], course)

    async def rest(self) -> None:
        """Nothing runs: all must come back."""
        held: dict[str, int] = {}
        try:
            async with asyncio.timeout(SETTLED_S):
                while held := await self._arena.held():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            self._tally.add_leaks(held, self._where)
