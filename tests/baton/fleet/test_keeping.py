"""A process that dies is restarted; one that keeps dying, or leaves, is not."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.fleet import Fleet, FleetEvent, FleetSpec, Keeper
from baton.fleet.keeping import LONGEST_PAUSE_S, MAX_EARLY_DEATHS, SOON_S, pause_s
from baton.fleet.processes.errors import ProcessKeepsDying
from baton.fleet.processes.events import ProcessDied, ProcessRestarted, ProcessRestarting, ProcessStarted
from tests.patience import PATIENCE_S

MakeSpec = Callable[..., FleetSpec]


@given(st.lists(st.floats(0, 2 * SOON_S), max_size=20))
def test_pauses_grow_with_early_deaths_in_a_row_until_it_is_enough(served_s: list[float]) -> None:
    early = 0
    while early < len(served_s) and served_s[-1 - early] < SOON_S:
        early += 1
    found = pause_s(served_s)
    assert (found is None) == (early > MAX_EARLY_DEATHS)
    if found is not None:
        assert 0 < found <= LONGEST_PAUSE_S
        assert found >= (pause_s([*served_s, SOON_S]) or 0.0)


class Kept:
    """A fleet of stand-ins with its keeper, and what was said."""

    def __init__(self, spec: FleetSpec, *, restarts: bool = True) -> None:
        self.events: list[FleetEvent] = []
        self.fleet = Fleet(spec, self.events.append)
        self._restarts = restarts
        self.keeping: asyncio.Task[None]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        async with self.fleet:
            keeper = Keeper(self.fleet, self.events.append, restarts=self._restarts)
            self.keeping = asyncio.create_task(keeper.keep())
            try:
                yield self.fleet
            finally:
                self.keeping.cancel()
                await asyncio.wait([self.keeping])

    async def said(self, kind: type[ProcessDied | ProcessRestarted], name: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not any(isinstance(event, kind) and event.name == name for event in self.events):
                await asyncio.sleep(0.02)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["decode-0", "prefill-0", "router-0", "redis"])
async def test_what_is_killed_serves_again_where_it_did(make_spec: MakeSpec, name: str) -> None:
    kept = Kept(make_spec())
    async with kept.running() as fleet:
        former, address = fleet.process(name), fleet.process(name).address
        former.kill()
        await kept.said(ProcessRestarted, name)
        assert fleet.process(name) is not former
        assert fleet.process(name).serving
        assert fleet.process(name).address == address
        assert not kept.keeping.done()


@pytest.mark.integration
async def test_a_start_that_fails_is_tried_again(make_spec: MakeSpec, tmp_path: Path) -> None:
    note = ("--act", "die-twice", "--note", str(tmp_path / "note"))
    kept = Kept(make_spec(extra_args={"decode": note}))
    async with kept.running() as fleet:
        fleet.process("decode-0").kill()
        await kept.said(ProcessRestarted, "decode-0")
        pauses = [event.pause_s for event in kept.events if isinstance(event, ProcessRestarting)]
        assert pauses == [0.5, 1.0, 2.0]
        deaths = [event for event in kept.events if isinstance(event, ProcessDied)]
        assert [death.exit_code for death in deaths] == [-signal.SIGKILL, 3, 3]


@pytest.mark.integration
async def test_a_process_that_keeps_dying_ends_the_fleet(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.fleet.keeping.FIRST_PAUSE_S", 0.01)
    kept = Kept(make_spec(extra_args={"prefill": ("--act", "die-soon")}))
    async with kept.running():
        with pytest.raises(ProcessKeepsDying, match="prefill-0 died 6 times soon after its start") as error:
            await asyncio.wait_for(kept.keeping, PATIENCE_S)
    assert error.value.exit_code == 4
    assert "out of luck" in error.value.tail


@pytest.mark.integration
async def test_leavers_stay_away_and_the_last_one_ends_the_fleet(make_spec: MakeSpec) -> None:
    kept = Kept(make_spec(decode=2))
    async with kept.running() as fleet:
        fleet.process("decode-0").terminate()
        await kept.said(ProcessDied, "decode-0")
        fleet.process("decode-1").terminate()
        await asyncio.wait_for(kept.keeping, PATIENCE_S)
        assert not any(isinstance(event, ProcessRestarting) for event in kept.events)


@pytest.mark.integration
async def test_without_restarts_the_last_decode_worker_ends_the_fleet(
    make_spec: MakeSpec,
) -> None:
    kept = Kept(make_spec(), restarts=False)
    async with kept.running() as fleet:
        fleet.process("prefill-0").kill()
        await kept.said(ProcessDied, "prefill-0")
        assert not kept.keeping.done()
        fleet.process("decode-0").kill()
        await asyncio.wait_for(kept.keeping, PATIENCE_S)


@pytest.mark.integration
async def test_one_that_is_replaced_at_the_same_time_is_started_once(make_spec: MakeSpec) -> None:
    events: list[FleetEvent] = []
    async with Fleet(make_spec(decode=2), events.append) as fleet:
        for name in ("router-0", "decode-1"):  # without a router nobody is asked whether it is connected
            fleet.process(name).kill()
            await fleet.next_death()
        await asyncio.gather(fleet.replace("decode-1"), fleet.revive("decode-1"))
        assert fleet.process("decode-1").serving
    starts = [event for event in events if isinstance(event, ProcessStarted) and event.name == "decode-1"]
    assert len(starts) == 2
