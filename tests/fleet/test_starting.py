"""A worker's start may take any time while it goes on; one that stands still is named and given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetEvent, FleetSpec
from baton.fleet.processes.errors import StartTimeout
from baton.fleet.processes.events import ProcessReady, ProcessStarting
from baton.types.snapshots import Role, StartingState
from kernels.native.loader import library
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import snapshot
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

STANDSTILL_S = 30.0
"""A starved machine may hold any process for a good part of this."""
PAUSE_S = 11.0


def spec(model: Path, run_dir: Path) -> FleetSpec:
    return FleetSpec(model=model, run_dir=run_dir, prefill=0, standstill_s=STANDSTILL_S)


@pytest.mark.long
async def test_a_slow_start_outlasts_any_limit(tiny_llama: Path, run_dir: Path) -> None:
    """Slowed as a busy machine slows it: the worker runs for a moment at a time."""
    events: list[FleetEvent] = []
    slowing: list[asyncio.Task[None]] = []

    def hear(event: FleetEvent) -> None:
        events.append(event)
        if isinstance(event, ProcessStarting) and event.name == "decode-0" and not slowing:
            slowing.append(asyncio.create_task(slow_down()))

    fleet = Fleet(spec(tiny_llama, run_dir), hear)

    async def slow_down() -> None:
        worker = fleet.process("decode-0")
        for _ in range(3):
            worker.pause()
            await asyncio.sleep(PAUSE_S)
            worker.resume()
            while worker.silent_s > 1.0 and not worker.serving:
                await asyncio.sleep(0.02)

    async with fleet:
        [ready] = [entry for entry in events if isinstance(entry, ProcessReady) and entry.name == "decode-0"]
        assert ready.took_s > STANDSTILL_S
    assert any(entry.doing == "importing" for entry in events if isinstance(entry, ProcessStarting))


async def test_a_worker_that_stands_still_is_named_by_launcher_and_status(
    tiny_llama: Path, run_dir: Path
) -> None:
    stopped = asyncio.Event()

    def hear(event: FleetEvent) -> None:
        if isinstance(event, ProcessStarting) and event.doing.startswith("reading"):
            fleet.process("decode-0").pause()
            stopped.set()

    fleet = Fleet(spec(tiny_llama, run_dir), hear)
    starting = asyncio.create_task(fleet.__aenter__())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await stopped.wait()
            while not fleet.process("router-0").serving:
                await asyncio.sleep(0.02)
        found = await silent_start(fleet.process("router-0").address)
        assert (found.worker_id, found.role) == ("decode-0", Role.DECODE)
        assert found.phase in {"importing", "reading weights"}  # it tells Redis once a second
        with pytest.raises(StartTimeout, match=r"decode-0 stood still for \d+ s \(reading weights"):
            await starting
    finally:
        starting.cancel()
        await asyncio.wait([starting])


async def silent_start(router: str) -> StartingState:
    """The one worker that starts, once it has said nothing for a while, as a router tells it."""
    async with AsyncClient(router) as client:
        while True:
            starting = (await snapshot(client)).starting
            if starting and starting[0].silent_s > 3.0:
                return starting[0]


async def test_status_says_how_each_worker_computes(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    of_decodes = {"decode": ["--dtype", "float64"]}
    asked = FleetSpec(model=tiny_llama, run_dir=run_dir, prefill=0, extra_args=of_decodes)
    async with make_fleet(asked) as fleet, AsyncClient(fleet.router_addresses) as client:
        [worker] = (await snapshot(client)).workers
    assert (worker.dtype, worker.native_ops) == ("float64", False)
    log = (run_dir / "decode-0.log").read_text()
    assert "--dtype asks for it" in log


async def test_status_says_that_native_ops_compute_where_they_are_built(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    asked = FleetSpec(model=tiny_llama, run_dir=run_dir, prefill=0)
    async with make_fleet(asked) as fleet, AsyncClient(fleet.router_addresses) as client:
        [worker] = (await snapshot(client)).workers
    assert (worker.dtype, worker.native_ops) == ("float32", library() is not None)
