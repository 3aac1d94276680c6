"""Routers reduced to what they ask of the store, each hammering it; as a process of its own too.

    python -m tests.runtime.state.hammer URL TOTAL ROUTER[:DEATH] ...

Prints a JSON line for each lease taken and each about to be returned, in the order of its own clock.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass

import pytest

from runtime.state.records import DecodeRoom, Grant, Notice, PrefillRoom, QueueEntry, Settled
from runtime.state.store import Store
from tests.runtime.state.patient import wait_patiently

PREFILL = [PrefillRoom("p1:a", 8), PrefillRoom("p2:a", 8)]
DECODE = [DecodeRoom("d1:a", 20, 4), DecodeRoom("d2:a", 9, 8), DecodeRoom("d3:a", 30, 30)]
MOST_IN_FLIGHT = sum(room.limit_tokens for room in PREFILL)
"""Each request is one token of work: so many hold a credit at most."""
LEASE_TTL_S = 8.0
"""Longer than a busy machine keeps a process from returning what it has claimed."""
PER_ROUTER = 150
ASK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks taken (or, negative, about to be returned) at a time of the system's monotonic clock."""

    at_s: float
    key: str
    worker_key: str
    blocks: int


class Died(Exception):
    """The router stops where it stands."""


class HammeringRouter:
    """Serves its own requests; dies after `death` of them, releasing nothing."""

    def __init__(self, store: Store, name: str, death: int | None, tell: Callable[[Held], None]) -> None:
        self._store, self._name, self._death, self._tell = store, name, death, tell
        self._random = random.Random(name)
        self._waiting = {entry.request_key: entry for entry in entries_of(name)}
        self._served = 0
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Calls for one request do not overtake each other, as in a real router."""

    async def run(self, total: int) -> None:
        """Enqueue everything, wait until all routers have, and serve until nothing of its own waits."""
        heard = self._store.notices(self._name)
        await anext(heard)  # subscribed: who is granted unheard loses the place until it asks again
        for entry in self._waiting.values():
            await self._store.enqueue(entry, total)
        try:
            async with asyncio.TaskGroup() as tasks:
                hearing = tasks.create_task(self._hear(heard, tasks))
                await self._wait_for_all(total)
                renewing = tasks.create_task(self._renew(total))
                while self._waiting:
                    room = self._random.choice(PREFILL)
                    for grant in await self._store.grant(self._name, room, DECODE):
                        tasks.create_task(self._serve(grant))
                    await asyncio.sleep(self._random.random() * 0.004)
                hearing.cancel()
                renewing.cancel()
        except* Died:
            pass
        finally:
            await heard.aclose()

    async def _wait_for_all(self, total: int) -> None:
        while (await self._store.queue_status()).waiting < total and not self._served:
            await asyncio.sleep(0.01)

    async def _hear(self, heard: AsyncGenerator[Notice, None], tasks: asyncio.TaskGroup) -> None:
        async for notice in heard:
            if isinstance(notice, Grant):
                tasks.create_task(self._serve(notice))

    async def _renew(self, total: int) -> None:
        while True:
            await asyncio.sleep(ASK_AGAIN_S)
            for key in list(self._waiting):
                await self._enqueue_again(key, total)

    async def _serve(self, grant: Grant) -> None:
        key, chosen = grant.request_key, self._random.choice(DECODE)
        rooms = [chosen, *(room for room in DECODE if room.key == grant.decode_key)]
        async with self._turns[key]:
            if key not in self._waiting:
                return  # a former grant came late, and this one has been settled
            settlement = await self._store.settle(key, grant.worker_key, rooms, LEASE_TTL_S)
            outcome, decode_key = settlement.outcome, settlement.decode_key
            blocks = self._waiting.pop(key).blocks if outcome is Settled.OK else 0
        if outcome is Settled.EXPIRED:
            await self._enqueue_again(key, 10**6)
        if outcome is not Settled.OK:
            return
        self._tell(Held(time.monotonic(), key, decode_key, blocks))
        self._served += 1
        if self._served == self._death:
            raise Died
        await asyncio.sleep(self._random.random() * 0.003)
        await self._store.release_credit(key, grant.worker_key)
        self._tell(Held(time.monotonic(), key, decode_key, -blocks))
        await self._store.release_lease(key, decode_key)

    async def _enqueue_again(self, key: str, capacity: int) -> None:
        async with self._turns[key]:
            if key in self._waiting:
                await self._store.enqueue(self._waiting[key], capacity)


def entries_of(name: str) -> list[QueueEntry]:
    """Due times hours apart: the order is known without the clock."""
    drawn = random.Random(f"entries of {name}")

    def entry(number: int) -> QueueEntry:
        slo_class, due_in_ms = drawn.randint(1, 3), drawn.randrange(10**4) * 10**6
        return QueueEntry(f"{name}-{number}", name, slo_class, due_in_ms, 1, drawn.randint(1, 5))

    return [entry(number) for number in range(PER_ROUTER)]


async def hammer(url: str, total: int, routers: dict[str, int | None], tell: Callable[[Held], None]) -> None:
    """Run these routers, each with a store of its own, to their ends."""

    async def one(name: str, death: int | None) -> None:
        store = await Store.connect(url)
        await HammeringRouter(store, name, death, tell).run(total)
        await store.close()

    await asyncio.gather(*(one(name, death) for name, death in routers.items()))


def _main(url: str, total: str, *routers: str) -> None:
    deaths = {
        name: int(death) if death else None
        for name, _, death in (router.partition(":") for router in routers)
    }

    def tell(held: Held) -> None:
        print(json.dumps(asdict(held)), flush=True)  # noqa: T201 -- read by the test that started it

    with pytest.MonkeyPatch.context() as monkeypatch:
        wait_patiently(monkeypatch)
        asyncio.run(hammer(url, int(total), deaths, tell))


if __name__ == "__main__":
    _main(*sys.argv[1:])
