"""Many routers on one Redis: what each claims at the same time as the others holds for all of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable

from runtime.state.records import PrefillRoom, QueueStatus
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.runtime.state.hammer import (
    DECODE,
    LEASE_TTL_S,
    MOST_IN_FLIGHT,
    PER_ROUTER,
    PREFILL,
    Held,
    entries_of,
    hammer,
)

EXPIRY_MARGIN_S = 4.0
"""A lease runs from its claim, which the claimer's clock sees only after the answer."""


async def test_claims_of_many_routers_hold_while_some_of_them_die(store: Store, redis_url: str) -> None:
    routers: dict[str, int | None] = {f"r{i}": None for i in range(6)} | {"dying1": 20, "dying2": 50}
    taken: list[Held] = []
    watching = asyncio.create_task(_watch(store))
    await hammer(redis_url, len(routers) * PER_ROUTER, routers, taken.append)
    watching.cancel()
    await asyncio.wait((watching,))
    assert watching.cancelled(), watching.exception()
    _judge(
        taken, survivors=[name for name, death in routers.items() if death is None], dead={"dying1", "dying2"}
    )
    await _nothing_is_left(store)


async def test_claims_of_processes_hold_while_one_of_them_is_killed(store: Store, redis_url: str) -> None:
    parts = [["a1", "a2", "a3"], ["b1", "b2"]]
    total = sum(len(names) for names in parts) * PER_ROUTER
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.runtime.state.hammer", redis_url, str(total), *names,
            stdout=asyncio.subprocess.PIPE,
        )
        for names in parts
    ]  # fmt: skip
    watching = asyncio.create_task(_watch(store))
    survivor, victim = await asyncio.gather(_read(processes[0]), _read(processes[1], kill_after=150))
    watching.cancel()
    await asyncio.wait((watching,))
    assert watching.cancelled(), watching.exception()
    _judge(survivor + victim, survivors=parts[0], dead=set(parts[1]))
    await _nothing_is_left(store)


async def _read(process: asyncio.subprocess.Process, kill_after: int | None = None) -> list[Held]:
    assert process.stdout is not None
    taken: list[Held] = []
    async for line in process.stdout:
        if not line.endswith(b"\n"):
            break  # killed in the middle of a word
        taken.append(Held(**json.loads(line)))
        if len(taken) == kill_after:
            process.kill()
    await process.wait()
    assert (process.returncode == 0) == (kill_after is None)
    return taken


async def _watch(store: Store) -> None:
    """Watch what Redis itself says is leased, all the time."""
    while True:
        for room in DECODE:
            leased = await store.leases(room.key)
            assert sum(leased.values()) <= room.num_blocks
            assert len(leased) <= room.max_seqs
        await asyncio.sleep(0.005)


def _judge(held: list[Held], survivors: list[str], dead: set[str]) -> None:
    held = sorted(held, key=lambda one: one.at_s)
    taken = [hold for hold in held if hold.blocks > 0]
    times = Counter(item.key for item in taken)
    wanted = {entry.request_key for name in survivors for entry in entries_of(name)}
    assert set(times.values()) == {1}
    assert {key for key in times if key.split("-")[0] not in dead} == wanted
    _judge_leases([*held, *_expiries(held)])
    _judge_order([item.key for item in taken], [*survivors, *dead])


def _expiries(held: list[Held]) -> Iterable[Held]:
    """Capacity that nobody returned comes back when it expires."""
    returned = {hold.key for hold in held if hold.blocks < 0}
    for hold in held:
        if hold.key not in returned:
            yield Held(hold.at_s + LEASE_TTL_S - EXPIRY_MARGIN_S, hold.key, hold.worker_key, -hold.blocks)


def _judge_leases(held: list[Held]) -> None:
    rooms = {room.key: room for room in DECODE}
    blocks: defaultdict[str, int] = defaultdict(int)
    seqs: defaultdict[str, int] = defaultdict(int)
    for hold in sorted(held, key=lambda one: one.at_s):
        blocks[hold.worker_key] += hold.blocks
        seqs[hold.worker_key] += 1 if hold.blocks > 0 else -1
        assert blocks[hold.worker_key] <= rooms[hold.worker_key].num_blocks
        assert seqs[hold.worker_key] <= rooms[hold.worker_key].max_seqs


def _judge_order(served: list[str], names: Iterable[str]) -> None:
    """Whoever is served had nobody in front but those with grants in flight."""
    order = {
        entry.request_key: (entry.slo_class, entry.due_in_ms) for name in names for entry in entries_of(name)
    }
    for i, key in enumerate(served):
        overtaken = sum(order[later] < order[key] for later in served[i + 1 :])
        assert overtaken < MOST_IN_FLIGHT, key


async def _nothing_is_left(store: Store) -> None:
    """The dead routers' requests leave the queue unserved, and what they held runs out."""
    async with asyncio.timeout(PATIENCE_S):
        while await store.queue_status() != QueueStatus(0, 0):
            assert await store.grant("sweeper", PrefillRoom("p3:a", 1), DECODE) == []
            await asyncio.sleep(0.02)
        while any([await store.leases(room.key) for room in DECODE]):
            await asyncio.sleep(0.02)
        while any([await store.credits(room.key) for room in PREFILL]):
            await asyncio.sleep(0.02)
