"""Choices, log-probabilities, stop strings, penalties and seeds survive the death of whoever served them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton import AsyncClient, Completion, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from baton.progress import Collector
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import DEMO_MODEL, EXACT, assert_all_is_freed, snapshot

pytestmark = pytest.mark.integration

PROMPT = "def add(a, b):\n    return"
SAMPLING = Sampling(
    n=3,
    temperature=0.9,
    top_p=0.95,
    seed=11,
    logprobs=2,
    repetition_penalty=1.1,
    presence_penalty=0.3,
    frequency_penalty=0.2,
)
STOP = Stop(max_tokens=160, strings=("\n\n\n", "zebra"), ignore_eos=True)


@dataclass
class Heard:
    """One generation as its caller heard it."""

    completion: Completion
    resumes: int


async def generate(client: AsyncClient, strike: Callable[[], Awaitable[None]] | None = None) -> Heard:
    """`strike` comes once each choice has some of its tokens."""
    counts = dict.fromkeys(range(SAMPLING.n or 1), 0)
    collector = Collector(len(counts))
    stream = client.generate(PROMPT, sampling=SAMPLING, stop=STOP)
    async for event in stream:
        collector.add(event)
        if isinstance(event, Tokens):
            assert event.first_index == counts[event.choice]
            counts[event.choice] += len(event.token_ids)
            if strike is not None and min(counts.values()) >= 12:
                await strike()
                strike = None
    assert strike is None, "it ended before it was struck"
    return Heard(collector.completion(stream.resumes), stream.resumes)


async def busy_worker(client: AsyncClient) -> str:
    workers = (await snapshot(client)).workers
    [name] = [
        worker.worker_id for worker in workers if worker.worker_id.startswith("decode") and worker.running
    ]
    return name


async def busy_router(fleet: Fleet) -> str:
    for name in fleet.spec.router_names:
        async with AsyncClient(fleet.process(name).address) as direct:
            if (await snapshot(direct)).queue.running_sessions:
                return name
    raise AssertionError("no router runs it")


async def test_deaths_of_a_worker_and_a_router_change_no_answer(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = FleetSpec(
        model=DEMO_MODEL,
        run_dir=run_dir,
        routers=2,
        decode=2,
        placement="disaggregated",
        extra_args={"prefill": EXACT, "decode": EXACT},
    )
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        expected = (await generate(client)).completion.choices
        assert all(len(entry.logprobs) == len(entry.token_ids) for entry in expected)

        async def kill_worker() -> None:
            fleet.process(await busy_worker(client)).kill()

        async def kill_router() -> None:
            fleet.process(await busy_router(fleet)).kill()

        replayed = await generate(client, kill_worker)
        assert replayed.resumes == 0
        assert replayed.completion.finished.usage.attempts >= 2
        assert replayed.completion.choices == expected

        resumed = await generate(client, kill_router)
        assert resumed.resumes == 1
        assert resumed.completion.choices == expected
        await assert_all_is_freed(fleet, client)
