"""Choices, log-probabilities, stop strings, penalties and seeds survive the death of whoever served them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton import AsyncClient, Completion, Sampling, Stop, Tokens
from baton.fleet import Fleet
from baton.progress import completion_of
from baton.types import Event
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed, busy_workers, exact, snapshot

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
    events: list[Event] = []
    stream = client.generate(PROMPT, sampling=SAMPLING, stop=STOP)
    async for event in stream:
        events.append(event)
        if isinstance(event, Tokens):
            assert event.first_index == counts[event.choice]
            counts[event.choice] += len(event.token_ids)
            if strike is not None and min(counts.values()) >= 12:
                await strike()
                strike = None
    assert strike is None, "it ended before it was struck"
    return Heard(completion_of(events, len(counts), stream.resumes), stream.resumes)


async def busy_routers(fleet: Fleet) -> list[str]:
    found = []
    for name in fleet.spec.router_names:
        async with AsyncClient(fleet.process(name).address) as direct:
            if (await snapshot(direct)).queue.running_sessions:
                found.append(name)
    return found


async def test_deaths_of_a_worker_and_a_router_change_no_answer(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = exact(run_dir, routers=2, decode=2, placement="disaggregated")
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        expected = (await generate(client)).completion.choices
        assert all(len(entry.logprobs) == len(entry.token_ids) for entry in expected)

        killed: list[str] = []

        async def kill_worker() -> None:
            killed[:] = (await busy_workers(client))[:1]
            for name in killed:
                fleet.process(name).kill()

        async def kill_router() -> None:
            killed[:] = (await busy_routers(fleet))[:1]
            for name in killed:
                fleet.process(name).kill()

        for _ in range(TRIES):  # the stream may end before it is known which worker runs it
            replayed = await generate(client, kill_worker)
            assert replayed.resumes == 0
            assert replayed.completion.choices == expected
            if replayed.completion.finished.usage.attempts >= 2:
                break
            for name in killed:
                await fleet.revive(name)
        else:
            raise AssertionError("each stream had ended before its worker was killed")

        for _ in range(TRIES):
            resumed = await generate(client, kill_router)
            assert resumed.completion.choices == expected
            if resumed.resumes == 1:
                break
            for name in killed:
                await fleet.revive(name)
        else:
            raise AssertionError("each stream had ended before its router was killed")
        await assert_all_is_freed(fleet, client)
