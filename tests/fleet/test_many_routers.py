"""Two routers on one Redis: one order, no lease twice, nothing lost when one of them dies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import FleetSpec
from baton.types.snapshots import Role
from benchmarks.crowds.crowd import Load, send
from benchmarks.doors.observe import snapshot
from benchmarks.router_cost.redis_calls import monitored, own_redis
from runtime.state.store import Store
from tests.fleet.conftest import MakeFleet
from tests.fleet.order_watch import OrderWatch
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

LOAD = Load("chat", rate=25.0, seconds=8.0, scale=0.1, seed=0)
SEATS = 3
"""Seats for about as many as come: a queue forms, and its order means something."""
START_S = 5.0
"""Seconds until the first request: the client imports its modules, and draws its requests."""
DRAIN_S = 60.0


@pytest.mark.long
async def test_order_leases_and_queued_requests_outlive_a_router(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    sizes, watch = ("--max-num-seqs", f"{SEATS}"), OrderWatch()
    with own_redis() as redis_url:
        spec = FleetSpec(
            redis_url=redis_url,
            model=DEMO_MODEL,
            decode=2,
            routers=2,
            timed="h200-llama-3.1-8b",
            run_dir=run_dir,
            # No request is refused, so a request that is not finished was lost.
            extra_args={"router": ("--queue-capacity", "100000"), "prefill": sizes, "decode": sizes},
        )
        async with make_fleet(spec) as fleet, monitored(redis_url, watch.take):
            async with AsyncClient(fleet.router_addresses[-1:]) as client:
                workers = (await snapshot(client)).workers
            sending = asyncio.create_task(send([LOAD], fleet.router_addresses, time.time() + START_S))
            await asyncio.sleep(START_S + LOAD.seconds / 2)
            fleet.process("router-0").kill()
            [outcome] = await sending
            assert await ledgers_in_use(redis_url, watch.ledgers) == []
    assert not outcome.errors
    assert outcome.finished == outcome.sent > 0.7 * LOAD.rate * LOAD.seconds
    assert outcome.wrong_length == 0
    assert outcome.resumed > 0, "the router that was killed held nothing"
    order = watch.facts
    assert order.passed_beyond_flight == 0
    assert order.granted + order.leased_at_once >= outcome.finished
    assert order.most_waiting > 5, "nothing waited, so nothing was put in order"
    blocks = {worker.worker_id: worker.num_blocks for worker in workers if worker.role is Role.DECODE}
    leased = {name: most for name, most in order.max_leased.items() if name in blocks}
    assert all(most <= blocks[name] for name, most in leased.items()), "blocks were leased twice"
    assert all(order.max_seats[name] <= SEATS for name in leased), "seats were leased twice"


async def ledgers_in_use(redis_url: str, ledgers: set[str]) -> list[str]:
    """Return the ledgers that hold something after a while: a dead router's entries must expire first."""
    give_up = time.monotonic() + DRAIN_S
    store = await Store.connect(redis_url)
    try:
        while True:
            left = [name for name in sorted(ledgers) if await entries(store, name)]
            if not left or time.monotonic() >= give_up:
                return left
            await asyncio.sleep(0.2)
    finally:
        await store.close()


async def entries(store: Store, ledger: str) -> dict[str, int]:
    kind, worker_key = ledger.split(":", 1)
    return await (store.leases(worker_key) if kind == "leases" else store.credits(worker_key))
