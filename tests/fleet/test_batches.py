"""A batch survives the death of every kind of process: the results are those of an undisturbed run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import openai
import pytest
import pytest_asyncio

from baton.fleet import Fleet
from tests.fleet.driving import until
from tests.fleets import NewFleet, kept
from tests.gateway.batches import jsonl, line, results
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_LINES = 60
LINES = [
    line(f"line-{n}", max_tokens=40 + n % 7 if n < 50 else 160, temperature=0.9, seed=n, ignore_eos=True)
    for n in range(NUM_LINES)
]
"""The last ones are long: the batch usually still goes on when the last process is killed."""
VICTIMS = (
    "gateway-0", "decode-0", "redis-gateway", "gateway-1", "router-0", "router-1", "redis", "decode-1",
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    few = {"gateway": ("--batch-lines", "4")}
    async with (
        new_fleet(timed="demo-cpu", routers=2, prefill=0, decode=2, gateways=2, extra_args=few) as started,
        kept(started, lambda _: None),
    ):
        yield started


class Caller:
    """A client that asks another gateway when one is away."""

    def __init__(self, fleet: Fleet) -> None:
        self._clients: list[Any] = [
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
            for url in fleet.gateway_urls
        ]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def do(self, what: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for client in self._clients:
                    with suppress(openai.APIConnectionError, openai.InternalServerError):
                        return await what(client)
                await asyncio.sleep(0.05)

    async def start(self) -> Any:
        file = await self.do(lambda client: client.files.create(file=("in", jsonl(LINES)), purpose="batch"))
        return await self.do(
            lambda client: client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        )

    async def look(self, batch: Any) -> Any:
        return await self.do(lambda client: client.batches.retrieve(batch.id))

    async def reached(self, batch: Any, completed: int) -> bool:
        """Wait until so many lines are done, and return whether others are still to come."""

        async def has_reached() -> bool:
            return bool((await self.look(batch)).request_counts.completed >= completed)

        await until(has_reached, f"{completed} lines are done")
        return bool((await self.look(batch)).status == "in_progress")

    async def results(self, batch: Any) -> dict[str, Any]:
        """Return the text of each line, which has run once and well."""

        async def has_ended() -> bool:
            return (await self.look(batch)).status == "completed"

        await until(has_ended, "the batch has ended")
        batch = await self.look(batch)
        assert (batch.request_counts.completed, batch.error_file_id) == (NUM_LINES, None)
        rows = await self.do(lambda client: results(client, batch.output_file_id))
        assert len(rows) == NUM_LINES
        return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(fleet: Fleet) -> AsyncIterator[Caller]:
    opened = Caller(fleet)
    yield opened
    await opened.close()


async def test_deaths_change_no_result(fleet: Fleet, caller: Caller) -> None:
    expected = await caller.results(await caller.start())
    assert len(expected) == NUM_LINES
    victims, batches = list(VICTIMS), []
    while victims:  # a batch may end before all have been killed
        batch = await caller.start()
        batches.append(batch.id)
        num_done = 3
        while victims and await caller.reached(batch, num_done):
            fleet.process(victims.pop(0)).kill()
            num_done += 6
        assert await caller.results(batch) == expected
    logs = "".join(
        path.read_text(encoding="utf-8")
        for name in fleet.spec.gateway_names
        for path in [fleet.process(name).log_path]
    )
    taken_over = [batch for batch in batches if f'"batch": "{batch}", "fence": 2' in logs]
    assert taken_over, "another gateway took one over"
