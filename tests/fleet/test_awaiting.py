"""A fleet that loses its only decode worker, and gets one back, refuses nobody who comes between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Stop, Timeout
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed, num_given_up, snapshot, until
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

NUM_REQUESTS = 5
STOP = Stop(max_tokens=8, ignore_eos=True)
AT_ONCE = Timeout(connect_s=0.001)
"""The client itself tries nothing again."""


async def test_requests_wait_for_the_worker_that_comes_back(tmp_path: Path, make_fleet: MakeFleet) -> None:
    spec = FleetSpec(model=DEMO_MODEL, timed="demo-cpu", decode=2, run_dir=tmp_path)
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses, timeout=AT_ONCE) as client,
    ):

        async def gone() -> bool:
            workers = (await snapshot(client)).workers
            return not any(worker.connected for worker in workers if worker.worker_id.startswith("decode"))

        fleet.process("decode-1").pause()
        fleet.process("decode-0").kill()
        await until(gone, "the router has lost its decode workers")
        num_before = num_given_up(fleet)
        sent = [asyncio.create_task(client.complete([3, 4, 5], stop=STOP)) for _ in range(NUM_REQUESTS)]

        async def arrived() -> bool:
            return (await snapshot(client)).queue.running_sessions == NUM_REQUESTS

        await until(arrived, "they wait at the router")
        fleet.process("decode-1").resume()
        for found in await asyncio.gather(*sent):
            assert len(found.choices[0].token_ids) == STOP.max_tokens
            assert found.finished.usage.attempts <= 1 + num_given_up(fleet) - num_before
        await assert_all_is_freed(fleet, client)
