"""Many requests at once: all that fit into memory wait for the tokenizer, and are served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Completion, Slo, Stop, Timeout
from baton.errors import Overloaded, Refused
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

PROFILE = "h200-llama-3.1-8b"
MEGABYTE = "a list of words, and then some more " * 28_000
WAITING_BYTES = 6 << 20
PATIENT = Timeout(total_s=150.0)
"""How soon a text is tokenised is the machine's affair, and not judged here."""


def spec(run_dir: Path, *router_args: str) -> FleetSpec:
    return FleetSpec(
        model=DEMO_MODEL,
        prefill=0,
        timed=PROFILE,
        placement="aggregated",
        run_dir=run_dir,
        extra_args={"router": router_args},
    )


async def ask(client: AsyncClient, prompt: str, slo: Slo | None = None) -> Completion:
    return await client.complete(prompt, stop=Stop(max_tokens=2, ignore_eos=True), slo=slo)


async def test_a_burst_of_small_requests_is_served_whole(run_dir: Path, make_fleet: MakeFleet) -> None:
    async with (
        make_fleet(spec(run_dir)) as fleet,
        AsyncClient(fleet.router_addresses, timeout=PATIENT) as client,
    ):
        for count in (256, 1000):
            found = await asyncio.gather(
                *(ask(client, f"The list is {number}") for number in range(count)), return_exceptions=True
            )
            assert [event for event in found if isinstance(event, BaseException)] == []
        await assert_all_is_freed(fleet, client)


async def test_a_flood_of_megabytes_is_bounded_and_short_requests_pass_it(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    limit = f"--max-waiting-prompt-bytes={WAITING_BYTES}"
    async with (
        make_fleet(spec(run_dir, limit)) as fleet,
        AsyncClient(fleet.router_addresses, timeout=PATIENT) as client,
    ):
        await ask(client, "The list is")
        for _ in range(TRIES):  # all may be tokenised while the short request stands still
            flood = [asyncio.create_task(client.count_tokens(MEGABYTE)) for _ in range(20)]
            await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            assert (await ask(client, "The list is")).finished.usage.output_tokens == 2
            num_passed = sum(not task.done() for task in flood)
            found = await asyncio.gather(*flood, return_exceptions=True)
            if num_passed > 2:
                break
        assert num_passed > 2, "a short request passes them"
        refused = [event for event in found if isinstance(event, BaseException)]
        assert refused
        for event in refused:
            assert isinstance(event, Overloaded)
            assert f"exceed the limit of {WAITING_BYTES}" in str(event)
            assert event.retry_after_s > 0
        assert len(found) - len(refused) >= WAITING_BYTES // len(MEGABYTE)
        await assert_all_is_freed(fleet, client)


@pytest.mark.alone
async def test_a_promise_the_queue_would_break_is_refused_others_wait(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(spec(run_dir)) as fleet,
        AsyncClient(fleet.router_addresses, timeout=PATIENT) as client,
    ):
        prompt, soon = MEGABYTE[: 1 << 16], Slo(ttft_ms=3000)
        assert (await ask(client, prompt, soon)).finished.promise.ttft_ms == 3000
        flood = [asyncio.create_task(client.count_tokens(prompt)) for _ in range(800)]
        await asyncio.wait(flood[400:], return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Refused) as late:
            await ask(client, prompt, soon)
        assert late.value.attainable_ttft_ms > 3000
        assert late.value.attainable_tpot_ms > 1
        assert late.value.retry_after_s > 0
        short = await ask(client, "The list is", soon)
        assert short.finished.usage.output_tokens == 2, "a short prompt passes the line"
        patient = asyncio.create_task(ask(client, prompt))
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert (await patient).finished.usage.output_tokens == 2
        assert (await ask(client, prompt, soon)).finished.promise.ttft_ms == 3000
        await assert_all_is_freed(fleet, client)
