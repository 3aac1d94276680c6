"""A process gives way to a successor; one that does not come up leaves nothing behind."""

import asyncio
import contextlib
import dataclasses
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.fleet import Fleet, FleetEvent, FleetSpec
from baton.fleet.processes.errors import RestartFailed, StartTimeout
from baton.fleet.processes.events import ProcessDied, ProcessReplaced, ProcessStarted, ReplacementFailed
from baton.fleet.running import Control, ask_restart

MakeSpec = Callable[..., FleetSpec]
pytestmark = pytest.mark.integration


class Interrupted(Exception):
    """End a block the way Ctrl-C does."""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def replace_in_vain(fleet: Fleet, name: str) -> None:
    """Its successor serves, but no router ever says that it is connected: stand-ins have no calls."""
    fleet.spec = dataclasses.replace(fleet.spec, standstill_s=0.5)
    with pytest.raises(StartTimeout):
        await fleet.replace(name)


async def test_an_only_worker_serves_on_when_its_successor_fails(
    make_spec: MakeSpec,
) -> None:
    events: list[FleetEvent] = []
    async with Fleet(make_spec(), events.append) as fleet:
        old = fleet.process("decode-0")
        await replace_in_vain(fleet, "decode-0")
        assert fleet.process("decode-0") is old
        assert old.running
        started = [event.pid for event in events if isinstance(event, ProcessStarted)]
        assert not alive(started[-1])
        assert started[-1] != old.pid
        told = [event for event in events if isinstance(event, (ReplacementFailed, ProcessDied))]
        assert [(type(event), event.name) for event in told] == [(ReplacementFailed, "decode-0")]
        old.kill()  # it is watched again
        assert (await fleet.next_death()).name == "decode-0"


async def test_without_a_predecessor_a_failed_successor_is_a_death(make_spec: MakeSpec) -> None:
    events: list[FleetEvent] = []
    async with Fleet(make_spec(decode=2), events.append) as fleet:
        await replace_in_vain(fleet, "decode-1")
        assert (await fleet.next_death()).name == "decode-1"
        assert not fleet.process("decode-1").running
        assert len([event for event in events if isinstance(event, ProcessDied)]) == 1


async def test_what_has_been_replaced_is_forgotten(make_spec: MakeSpec) -> None:
    events: list[FleetEvent] = []
    async with Fleet(make_spec(), events.append) as fleet:
        fleet.process("router-0").kill()  # nobody is asked whether the successor is connected
        await fleet.next_death()
        former = [weakref.ref(fleet.process(name)) for name in ("decode-0", "prefill-0")]
        for name in ("decode-0", "prefill-0"):
            await fleet.replace(name)
        gc.collect()
        assert [entry() for entry in former] == [None, None]
        assert all(fleet.process(name).running for name in ("decode-0", "prefill-0"))
    assert [event.name for event in events if isinstance(event, ProcessReplaced)] == ["decode-0", "prefill-0"]
    assert [event.name for event in events if isinstance(event, ProcessDied)] == ["router-0"]


async def test_the_end_calls_off_an_order_and_waits_for_no_client(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    pids: list[int] = []
    succeeding = asyncio.Event()

    def watch(event: FleetEvent) -> None:
        if isinstance(event, ProcessStarted):
            pids.append(event.pid)
            if len(pids) > 4:
                succeeding.set()

    control = Control(watch)

    async def interrupted(fleet: Fleet) -> asyncio.Task[ProcessReplaced]:
        with contextlib.suppress(Interrupted):
            async with control.serving(fleet):
                socket = (fleet.run_dir / "control").read_text(encoding="utf-8")
                _, silent = await asyncio.open_unix_connection(socket)
                clients.callback(silent.close)
                asking = asyncio.create_task(anext(ask_restart(tmp_path / "run")))
                await succeeding.wait()
                raise Interrupted
        return asking

    async with Fleet(make_spec(), control) as fleet:
        with contextlib.ExitStack() as clients:
            asking = await interrupted(fleet)
            with pytest.raises(RestartFailed, match="the launcher ended"):
                await asking
        assert not alive(pids[4])
        assert fleet.process("decode-0").pid in pids[:4]
    assert not any(alive(pid) for pid in pids)
