"""A fleet whose only decode worker dies and is started again refuses nobody who comes between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Stop, Timeout
from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import DEMO_MODEL, assert_all_is_freed, snapshot, until

pytestmark = pytest.mark.integration

WORKER = "decode-0"
AT_ONCE = Timeout(connect_s=0.001)
"""The client itself tries nothing again."""


async def test_a_request_waits_for_the_worker_that_is_started_again(tmp_path: Path) -> None:
    spec = FleetSpec(model=DEMO_MODEL, timed="demo-cpu", run_dir=tmp_path)
    async with (
        Fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses, timeout=AT_ONCE) as client,
    ):
        fleet.process(WORKER).kill()

        async def gone() -> bool:
            return not any(
                one.connected for one in (await snapshot(client)).workers if one.worker_id == WORKER
            )

        await until(gone, "the router has lost its decode worker")
        stop = Stop(max_tokens=8, ignore_eos=True)
        sent = [asyncio.create_task(client.complete([3, 4, 5], stop=stop)) for _ in range(5)]
        await fleet.revive(WORKER)
        for found in await asyncio.gather(*sent):
            assert len(found.choices[0].token_ids) == 8
            assert found.finished.usage.attempts == 1
        await assert_all_is_freed(fleet, client)
