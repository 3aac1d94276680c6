"""A worker's start may take any time while it goes on; one that stands still is named and given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetEvent, FleetSpec, ProcessReady, ProcessStarting, StartTimeout
from baton.snapshots import StartingState
from tests.fleet.driving import snapshot, until

pytestmark = pytest.mark.integration

STANDSTILL_S = 15.0
PAUSE_S = 6.0


def spec(model: Path, run_dir: Path) -> FleetSpec:
    return FleetSpec(model=model, run_dir=run_dir, prefill=0, standstill_s=STANDSTILL_S)


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
        [ready] = [one for one in events if isinstance(one, ProcessReady) and one.name == "decode-0"]
        assert ready.took_s > STANDSTILL_S
    assert any(one.doing == "importing" for one in events if isinstance(one, ProcessStarting))


async def test_a_worker_that_stands_still_is_named_by_launcher_and_status(
    tiny_llama: Path, run_dir: Path
) -> None:
    stopped = asyncio.Event()

    def hear(event: FleetEvent) -> None:
        # From here on it has a name in Redis.
        if isinstance(event, ProcessStarting) and event.doing.startswith(("reading", "measuring")):
            fleet.process("decode-0").pause()
            stopped.set()

    fleet = Fleet(spec(tiny_llama, run_dir), hear)
    starting = asyncio.create_task(fleet.__aenter__())
    async with asyncio.timeout(120):
        await stopped.wait()
    shown: list[StartingState] = []

    async def is_silent() -> bool:
        shown[:] = (await snapshot(client)).starting
        return bool(shown) and shown[0].silent_s > 3.0

    async with AsyncClient(fleet.process("router-0").address) as client:
        await until(is_silent, "a silence of 3 s", timeout_s=60.0)
    assert shown[0].worker_id == "decode-0"
    assert shown[0].phase in {"reading weights", "measuring steps", "joining the fleet"}
    with pytest.raises(StartTimeout, match=rf"decode-0 stood still for \d+ s \({shown[0].phase}"):
        await starting
