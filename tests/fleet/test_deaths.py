"""A process dies in mid-stream: the stream goes on from the next index, with the tokens it would have had.

A strike costs one attempt, and more where the machine starves the other worker for so long that it counts as
lost too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from baton import AsyncClient, Completion, Finished, Sampling, Stop, Timeout, Tokens
from baton.errors import Unavailable
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import (
    TRIES,
    assert_all_is_freed,
    busy_workers,
    exact,
    num_given_up,
    snapshot,
    until,
)

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(70)]
LONG_PROMPT = [3 + i % 90 for i in range(400)]
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, presence_penalty=0.5)
# Long enough that a strike at the twentieth token comes in the middle.
STOP = Stop(max_tokens=400, ignore_eos=True)


def spec(run_dir: Path, **counts: Any) -> FleetSpec:
    return exact(run_dir, placement="disaggregated", **counts)


async def tokens_with(
    client: AsyncClient, strike: Callable[[], Awaitable[None]], at_index: int
) -> tuple[list[int], Finished]:
    """All tokens of one generation; `strike` comes once index `at_index` is there."""
    received: list[int] = []
    finished: Finished | None = None
    struck = False
    async for event in client.generate(PROMPT, sampling=SAMPLING, stop=STOP):
        if isinstance(event, Tokens):
            assert event.first_index == len(received)
            received += event.token_ids
            if len(received) > at_index and not struck:
                struck = True
                await strike()
        elif isinstance(event, Finished):
            finished = event
    assert finished is not None
    assert struck
    return received, finished


async def undisturbed(client: AsyncClient, prompt: Sequence[int] = PROMPT) -> Completion:
    return await client.complete(prompt, sampling=SAMPLING, stop=STOP)


async def test_a_decode_worker_s_standstill_and_death_are_a_pause(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(spec(run_dir, decode=2)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        expected = await undisturbed(client)
        struck: list[str] = []

        async def stop() -> None:
            struck[:] = await busy_workers(client)
            for name in struck[:1]:
                fleet.process(name).pause()

        async def kill() -> None:
            struck[:] = await busy_workers(client)
            for name in struck[:1]:
                fleet.process(name).kill()

        async def all_connected() -> bool:
            return sum(worker.connected for worker in (await snapshot(client)).workers) == 3

        for strike in (stop, kill):
            for _ in range(TRIES):
                received, finished = await tokens_with(client, strike, at_index=20)
                assert tuple(received) == expected.choices[0].token_ids
                for name in struck[:1]:
                    if strike is stop:
                        fleet.process(name).resume()
                    else:
                        await fleet.revive(name)
                await until(all_connected, "the struck worker is back")
                await assert_all_is_freed(fleet, client)
                if struck and finished.usage.attempts >= 2:
                    break
            else:
                raise AssertionError(f"{strike.__name__}: each stream had ended before its worker was struck")


async def test_a_prefill_worker_s_death_before_the_commit_is_a_longer_wait(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    # One token a step: the prompt takes long enough to be struck in the middle.
    slow = exact(run_dir, placement="disaggregated", prefill=2, more={"prefill": ("--token-budget", "1")})
    async with (
        make_fleet(slow) as fleet,
        AsyncClient(fleet.router_addresses, tenant="undisturbed") as other,
    ):
        expected = await undisturbed(other, LONG_PROMPT)
        for number in range(TRIES):  # it may be computed before it is known where
            # Tenants share no cached prefix: the prompt is computed from its beginning, whoever has it.
            async with AsyncClient(fleet.router_addresses, tenant=f"struck-{number}") as client:
                generation = asyncio.create_task(undisturbed(client, LONG_PROMPT))
                busy: list[str] = []
                while not busy and not generation.done():
                    await asyncio.sleep(0.01)
                    workers = (await snapshot(client)).workers
                    busy = [
                        worker.worker_id
                        for worker in workers
                        if worker.worker_id.startswith("prefill") and worker.pending_prefill_tokens > 0
                    ]
                if busy:
                    fleet.process(busy[0]).kill()
                assert (await generation).choices == expected.choices
            if busy:
                return
        raise AssertionError("no prompt was seen in the making")


async def test_a_router_s_death_is_bridged_by_the_client(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with (
        make_fleet(spec(run_dir, routers=2)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        expected = await undisturbed(client)
        killed: list[str] = []

        async def kill() -> None:
            for name in fleet.spec.router_names:
                async with AsyncClient(fleet.process(name).address) as direct:
                    if (await snapshot(direct)).queue.running_sessions:
                        fleet.process(name).kill()
                        killed.append(name)

        for _ in range(TRIES):  # the stream may end before it is known which router runs it
            received, _ = await tokens_with(client, kill, at_index=20)
            assert tuple(received) == expected.choices[0].token_ids
            if killed:
                break
        assert len(killed) == 1


async def test_redis_gone_refuses_the_new_and_leaves_the_running_alone(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(spec(run_dir)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        expected = await undisturbed(client)

        async def kill() -> None:
            fleet.process("redis").kill()

        before = num_given_up(fleet)
        received, finished = await tokens_with(client, kill, at_index=5)
        assert tuple(received) == expected.choices[0].token_ids
        assert finished.usage.attempts <= 1 + num_given_up(fleet) - before

        with pytest.raises(Unavailable, match="Redis"):
            await client.complete([3, 4, 5], stop=Stop(max_tokens=2), timeout=Timeout(connect_s=1.0))
