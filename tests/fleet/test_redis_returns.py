"""Redis dies and comes back with what it once saved: streams go on, and what they hold is held again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio

from baton import AsyncClient, Finished, Sampling, Stop, Tokens
from baton.errors import Unavailable
from baton.fleet import FleetSpec
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import FEW, TRIES, assert_all_is_freed, num_given_up, snapshot, until
from tests.fleets import DEMO_MODEL
from tests.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(70)]
STOP = Stop(max_tokens=600, ignore_eos=True)
GREEDY = Sampling(temperature=0.0)
SHORT = Stop(max_tokens=4, ignore_eos=True)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as one:
        yield one


def spec(run_dir: Path, server: RedisServer, without_redis: str | None = None) -> FleetSpec:
    args = ("--num-blocks", "128", *FEW)
    return FleetSpec(
        model=DEMO_MODEL,
        run_dir=run_dir,
        placement="disaggregated",
        redis_url=server.url,
        without_redis=without_redis,
        extra_args={"prefill": args, "decode": args},
    )


async def test_a_redis_that_comes_back_is_told_what_runs(
    run_dir: Path, server: RedisServer, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(spec(run_dir, server)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):

        async def stream(started: asyncio.Event) -> Finished:
            count = 0
            async for event in client.generate(PROMPT, stop=STOP):
                if isinstance(event, Tokens):
                    assert event.first_index == count
                    count += len(event.token_ids)
                    if count >= 5:
                        started.set()
                elif isinstance(event, Finished):
                    assert count == STOP.max_tokens
                    return event
            raise AssertionError("no end")

        store = await Store.connect(fleet.redis_url)
        [decoder] = [worker.key for worker in await store.list_workers() if worker.role == "decode"]
        for _ in range(TRIES):  # it may end before its lease is looked up
            started, num_before = asyncio.Event(), num_given_up(fleet)
            running = asyncio.create_task(stream(started))
            await started.wait()
            leases = await store.leases(decoder)
            if leases:
                break
            await running
        [(request_key, blocks)] = leases.items()
        async with redis.asyncio.Redis.from_url(server.url) as admin:
            await store.release_lease(request_key, decoder)
            await admin.save()  # what it will remember is wrong
        server.stop(kill=True)
        with pytest.raises(Unavailable, match="Redis"):
            async with AsyncClient(fleet.router_addresses) as newcomer:
                await newcomer.complete(PROMPT[:3], stop=SHORT)
        server.start()

        async def entered_again() -> bool:
            return running.done() or await _leases(store, decoder) == {request_key: blocks}

        await until(entered_again, "the running request's lease")
        found = await client.complete(PROMPT[:9], stop=SHORT)
        assert len(found.choices[0].token_ids) == SHORT.max_tokens
        assert (await running).usage.attempts <= 1 + num_given_up(fleet) - num_before
        await store.close()
        await assert_all_is_freed(fleet, client)


async def test_newcomers_are_served_without_redis_where_that_is_wanted(
    run_dir: Path, server: RedisServer, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(spec(run_dir, server, "local")) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        expected = await client.complete(PROMPT, sampling=GREEDY, stop=SHORT)
        server.stop(kill=True)
        found = await asyncio.gather(
            *(client.complete(PROMPT, sampling=GREEDY, stop=SHORT) for _ in range(6))
        )
        assert {answer.choices for answer in found} == {expected.choices}
        assert not (await snapshot(client)).queue.redis_reachable
        server.start()
        assert (await client.complete(PROMPT, sampling=GREEDY, stop=SHORT)).choices == expected.choices
        await assert_all_is_freed(fleet, client)


async def _leases(store: Store, worker_key: str) -> dict[str, int]:
    try:
        return await store.leases(worker_key)
    except StoreUnavailable:
        return {}
