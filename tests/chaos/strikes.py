"""Carries a fault out on the arena, lets it last, and takes it back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.arena import Arena
from tests.chaos.plan import MESSAGE_KINDS, Fault, Kind, Phase, Place
from tests.chaos.proxies import MessageProxy

STOPPED_S = (0.3, 7.0)
"""Shorter and longer than it takes to notice: who wakes late may find that all went on without it."""
HALF_OPEN_S = (0.5, 7.0)
DELAY_S = 0.05
DELAYED_S = 0.5
ARMED_S = 3.0
"""Then the message that was to be struck did not come: the request had gone on too far."""
WORK = "/baton.v1.WorkerService/Work"
FETCH = "/baton.v1.KVTransferService/Fetch"
OPEN = "/baton.v1.KVTransferService/Open"


@asynccontextmanager
async def strike(arena: Arena, fault: Fault, rng: random.Random) -> AsyncIterator[bool]:
    """The fault lasts as long as the block, at most as long as its kind does; whether it struck."""
    name = await arena.busy(fault.place)
    match fault.kind:
        case Kind.KILL | Kind.STOP:
            async with _process(arena, fault, name, rng):
                yield True
        case Kind.CUT:
            arena.links[name].cut()
            yield True
        case Kind.HALF_OPEN | Kind.DELAY:
            async with _link(arena, fault, name, rng):
                yield True
        case _:
            yield await _message(arena, fault, name)


@asynccontextmanager
async def _process(arena: Arena, fault: Fault, name: str, rng: random.Random) -> AsyncIterator[None]:
    if fault.kind is Kind.KILL:
        if fault.place is Place.REDIS:
            arena.redis.stop(kill=True)
        else:
            arena.fleet.process(name).kill()
        try:
            yield
        finally:
            await arena.revive(name)
        return
    process = arena.redis if fault.place is Place.REDIS else arena.fleet.process(name)
    process.pause()
    waking = asyncio.get_running_loop().call_later(rng.choice(STOPPED_S), process.resume)
    try:
        yield
    finally:
        waking.cancel()
        process.resume()


@asynccontextmanager
async def _link(arena: Arena, fault: Fault, name: str, rng: random.Random) -> AsyncIterator[None]:
    link = arena.links[name]
    if fault.kind is Kind.DELAY:
        link.delay_s, lasts_s = DELAY_S, DELAYED_S
    else:
        link.freeze()
        lasts_s = rng.choice(HALF_OPEN_S)
    healing = asyncio.get_running_loop().call_later(lasts_s, link.heal)
    try:
        yield
    finally:
        healing.cancel()
        link.heal()


async def _message(arena: Arena, fault: Fault, name: str) -> bool:
    """A message of the stream that the phase lives on; a KV message where blocks travel."""
    if fault.kind in MESSAGE_KINDS:
        travels = fault.place is Place.PREFILL and fault.phase is Phase.HANDOFF
        methods: tuple[str, ...] = (OPEN, WORK) if travels else (WORK,)
    else:
        methods = (FETCH,)
    proxies = [arena.links[name]]
    if fault.kind is Kind.CORRUPT:
        proxies = [arena.links[one] for one in arena.names_of(Place.PREFILL)]
    waits = []
    for proxy in proxies:
        assert isinstance(proxy, MessageProxy), "Redis is asked, not sent messages"
        proxy.arm(fault.kind, lambda method: method in methods)
        waits.append(asyncio.create_task(proxy.struck.wait()))
    done, waiting = await asyncio.wait(waits, timeout=ARMED_S, return_when=asyncio.FIRST_COMPLETED)
    for wait in waiting:
        wait.cancel()
    for proxy in proxies:
        assert isinstance(proxy, MessageProxy), "as above"
        proxy.disarm()
    return bool(done)
