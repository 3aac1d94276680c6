"""A router of several processes: every one serves, any of them goes on with what another began."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from baton import AsyncClient, Completion, Finished, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from baton.types import Slo
from baton.v1 import generation_pb2
from baton.wire.convert import request_to_pb, resume_to_pb
from baton.wire.transport import GENERATE, RESUME, GrpcTransport
from benchmarks.doors.observe import child_processes, scrape, total
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed, exact, snapshot, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(70)]
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, presence_penalty=0.5)
STOP = Stop(max_tokens=300, ignore_eos=True)
NAMES = ("router-0.0", "router-0.1")


def spec(run_dir: Path) -> FleetSpec:
    return exact(run_dir, router_processes=2, drain_s=PATIENCE_S)


@contextlib.asynccontextmanager
async def clients_of_each(fleet: Fleet, number: int) -> AsyncIterator[dict[str, list[AsyncClient]]]:
    """Connect until each process has `number` clients, each with a connection of its own."""
    found: dict[str, list[AsyncClient]] = {name: [] for name in NAMES}
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(PATIENCE_S):
            while any(len(clients) < number for clients in found.values()):
                client = await stack.enter_async_context(AsyncClient(fleet.router_addresses))
                clients = found[(await snapshot(client)).router_id]
                if len(clients) < number:
                    clients.append(client)
        yield found


def process_ids(fleet: Fleet) -> list[int]:
    return child_processes(fleet.process("router-0").pid)


async def relayed(fleet: Fleet) -> list[float]:
    """Return the tokens that each process has relayed."""
    addresses = fleet.process("router-0").metrics_address.split(",")
    return [total(await scrape(address), "baton_relayed_tokens_total") for address in addresses]


async def undisturbed(client: AsyncClient) -> Completion:
    return await client.complete(PROMPT, sampling=SAMPLING, stop=STOP)


async def test_every_process_relays_tokens(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with make_fleet(spec(run_dir)) as fleet, clients_of_each(fleet, 2) as clients:
        everyone = itertools.chain.from_iterable(clients.values())
        completions = await asyncio.gather(*(undisturbed(client) for client in everyone))
        assert len({completion.choices[0].token_ids for completion in completions}) == 1
        assert await relayed(fleet) == [600, 600]


async def test_a_cancel_at_another_process_ends_a_stream(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with make_fleet(spec(run_dir)) as fleet, clients_of_each(fleet, 1) as clients:
        [here], [there] = clients.values()
        endless = Stop(max_tokens=4000, ignore_eos=True)
        finished: Finished | None = None
        async for event in here.generate(PROMPT, stop=endless, request_id="endless"):
            if isinstance(event, Tokens) and event.first_index == 0:
                assert not await there.cancel("endless"), "it runs at the other process"
            elif isinstance(event, Finished):
                finished = event
        assert finished is not None
        assert finished.usage.output_tokens < 4000
        await assert_all_is_freed(fleet, here)


async def test_a_stream_goes_on_at_another_process(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with make_fleet(spec(run_dir)) as fleet, clients_of_each(fleet, 1) as clients:
        [here], [there] = clients.values()
        expected = await undisturbed(here)
        tokens: list[int] = []
        [first], [second] = here._routers.transports, there._routers.transports
        assert isinstance(first, GrpcTransport)
        for number in range(TRIES):  # a reader that stands still may be told of all tokens at once
            moved = f"moved-{number}"
            request = request_to_pb(PROMPT, SAMPLING, STOP, Slo(), request_id=moved, resume_grace_ms=10_000)
            tokens.clear()
            async with aclosing(first.stream(GENERATE, request)) as responses:
                async for response in responses:
                    tokens += response.event.tokens.token_ids
                    if len(tokens) > 20:
                        break
            if len(tokens) < 300:
                break
        assert len(tokens) < 300
        reason = generation_pb2.FINISH_REASON_UNSPECIFIED
        async for resumed in second.stream(RESUME, resume_to_pb(request, 1, {0: tokens}, 0)):
            if resumed.event.HasField("tokens"):
                assert resumed.event.tokens.first_index == len(tokens), "a token was lost or repeated"
                tokens += resumed.event.tokens.token_ids
            elif resumed.event.HasField("choice_finished"):
                reason = resumed.event.choice_finished.reason
        assert reason == generation_pb2.FINISH_REASON_LENGTH
        assert tuple(tokens) == expected.choices[0].token_ids
        await assert_all_is_freed(fleet, there)


@pytest.mark.long
async def test_streams_outlive_the_death_of_their_process_which_is_replaced(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with make_fleet(spec(run_dir)) as fleet:
        for _ in range(TRIES):  # streams may end before they are seen to be under way
            async with clients_of_each(fleet, 3) as clients:
                resumes, expected = await of_a_killed_process(fleet, clients)
            if resumes in ([[1, 1, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]]):
                break
            assert set(itertools.chain.from_iterable(resumes)) <= {0, 1}
        else:
            raise AssertionError("each time a stream had ended before its process was killed")
        async with clients_of_each(fleet, 1) as clients_now:
            for [client] in clients_now.values():
                assert (await undisturbed(client)).choices[0].token_ids == expected
            await assert_all_is_freed(fleet, client)


async def of_a_killed_process(
    fleet: Fleet, clients: dict[str, list[AsyncClient]]
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Kill a process amid streams of all clients. Return how often those of each process resumed, and tokens.

    All streams have the same tokens, and the process is replaced.
    """
    everyone = list(itertools.chain.from_iterable(clients.values()))
    expected = (await undisturbed(everyone[0])).choices[0].token_ids
    before = sum(await relayed(fleet))
    streams = asyncio.gather(*(undisturbed(client) for client in everyone))

    async def all_stream() -> bool:
        return sum(await relayed(fleet)) - before > 20 * len(everyone)

    await until(all_stream, "streams under way")
    doomed, other = process_ids(fleet)
    os.kill(doomed, signal.SIGKILL)
    completions = await streams
    assert [completion.choices[0].token_ids for completion in completions] == [expected] * len(everyone)
    assert fleet.process("router-0").running

    async def replaced() -> bool:
        ids = process_ids(fleet)
        return len(ids) == 2 and other in ids and doomed not in ids

    await until(replaced, "a new process")
    resumes = [completion.resumes for completion in completions]
    return [resumes[:3], resumes[3:]], expected


@pytest.mark.long
async def test_sigterm_lets_the_streams_of_all_processes_end(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with make_fleet(spec(run_dir)) as fleet, clients_of_each(fleet, 1) as clients:
        streams = asyncio.gather(*(undisturbed(client) for [client] in clients.values()))

        async def both_stream() -> bool:
            return min(await relayed(fleet)) > 20

        await until(both_stream, "streams under way")
        router, ids = fleet.process("router-0"), process_ids(fleet)
        router.terminate()
        completions = await streams
        assert {len(completion.choices[0].token_ids) for completion in completions} == {STOP.max_tokens}
        assert [completion.resumes for completion in completions] == [0, 0]
        assert await router.wait() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in ids)
