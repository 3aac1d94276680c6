"""A worker that says nothing is given up if it is dead or out of reach, and waited for if it is busy."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton import AsyncClient, Finished, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from baton.security.credentials import UNENCRYPTED
from tests.chaos.proxies import MessageProxy
from tests.chaos.watch import Watch
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import snapshot, until
from tests.fleets import DEMO_MODEL
from tests.ports import free_port

pytestmark = pytest.mark.integration

WORKER = "decode-0"
HELD_S = 4.0
HOLDS_ITS_LOOP = f"""
import signal, time

def hold(*_):
    end = time.monotonic() + {HELD_S}
    while time.monotonic() < end:
        pass

signal.signal(signal.SIGUSR1, hold)
"""
"""Python runs a signal's handler on the thread of the event loop, which is busy for so long."""
STOP = Stop(max_tokens=1000, ignore_eos=True)
"""So many that something still runs when the twentieth is read late."""
STRUCK_AT = 20
"""The token at which something happens to the worker."""


@asynccontextmanager
async def fleet_of_one(
    make_fleet: MakeFleet, folder: Path, *worker_flags: str, secure: Path | None = None
) -> AsyncIterator[tuple[Fleet, AsyncClient]]:
    """One decode worker that does all, in a process whose loop `SIGUSR1` holds up."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HOLDS_ITS_LOOP)
    spec = FleetSpec(
        model=DEMO_MODEL,
        timed="demo-cpu",
        prefill=0,
        placement="aggregated",
        run_dir=folder / "run",
        environment={"PYTHONPATH": str(site)},
        extra_args={"decode": worker_flags},
        secure=secure,
    )
    async with make_fleet(spec) as fleet:
        credentials = UNENCRYPTED if fleet.secured is None else fleet.secured.credentials
        async with AsyncClient(fleet.router_addresses, credentials=credentials) as client:
            yield fleet, client


def said(fleet: Fleet, word: str) -> list[str]:
    """The router's log lines about its worker with this word."""
    return [line for line in fleet.process("router-0").log_path.read_text().splitlines() if word in line]


async def stream(client: AsyncClient, strike: Callable[[], None]) -> Finished:
    """One generation to its end; something happens in its middle."""
    received = 0
    async for event in client.generate([3] * 20, sampling=Sampling(seed=1), stop=STOP):
        if isinstance(event, Tokens):
            assert event.first_index == received, "no token is lost or repeated"
            before, received = received, received + len(event.token_ids)
            if before < STRUCK_AT <= received:
                strike()
        elif isinstance(event, Finished):
            assert received == STOP.max_tokens
            return event
    raise AssertionError("a stream ends with Finished")


async def until_lost(client: AsyncClient) -> None:
    async def lost() -> bool:
        return not any(worker.connected for worker in (await snapshot(client)).workers)

    await until(lost, "the worker is given up")


@pytest.mark.parametrize("is_secured", [False, True], ids=["in the clear", "secured"])
async def test_a_worker_whose_event_loop_is_busy_is_waited_for(
    tmp_path: Path,
    make_fleet: MakeFleet,
    is_secured: bool,
) -> None:
    secure = tmp_path / "secure" if is_secured else None
    async with fleet_of_one(make_fleet, tmp_path, secure=secure) as (fleet, client):
        pid = fleet.process(WORKER).pid
        finished = await stream(client, lambda: os.kill(pid, signal.SIGUSR1))
        assert finished.usage.attempts == 1
        assert finished.delivery.max_gap_ms >= HELD_S * 500, "it was held up"
        assert said(fleet, "worker_held")
        assert not said(fleet, "link_broken")


async def test_a_stopped_worker_is_given_up(tmp_path: Path, make_fleet: MakeFleet) -> None:
    async with fleet_of_one(make_fleet, tmp_path) as (fleet, client):
        held_before = said(fleet, "worker_held")
        fleet.process(WORKER).pause()
        await until_lost(client)

        async def told() -> bool:
            return bool(said(fleet, "silent for "))

        await until(told, "the log says why")
        assert said(fleet, "worker_held") == held_before
        fleet.process(WORKER).resume()


@pytest.mark.parametrize(
    "datagrams", [True, False], ids=["nothing comes through", "only datagrams come through"]
)
async def test_a_half_open_link_is_given_up_although_the_worker_lives(
    tmp_path: Path,
    make_fleet: MakeFleet,
    datagrams: bool,
) -> None:
    listen, advertise = (f"127.0.0.1:{free_port()}" for _ in range(2))
    async with (
        MessageProxy(WORKER, advertise, listen, Watch()) as link,
        fleet_of_one(make_fleet, tmp_path, "--listen", listen, "--advertise", advertise) as (fleet, client),
    ):
        held_before = said(fleet, "worker_held")
        link.freeze(datagrams=datagrams)
        await until_lost(client)

        async def told() -> bool:
            return bool(said(fleet, "silent for "))

        await until(told, "the log says why")
        assert said(fleet, "worker_held") == held_before
        link.heal()


async def test_a_busy_worker_behind_a_proxy_is_waited_for_as_well(
    tmp_path: Path, make_fleet: MakeFleet
) -> None:
    listen, advertise = (f"127.0.0.1:{free_port()}" for _ in range(2))
    async with (
        MessageProxy(WORKER, advertise, listen, Watch()),
        fleet_of_one(make_fleet, tmp_path, "--listen", listen, "--advertise", advertise) as (fleet, client),
    ):
        pid = fleet.process(WORKER).pid
        finished = await stream(client, lambda: os.kill(pid, signal.SIGUSR1))
        assert finished.usage.attempts == 1
        assert not said(fleet, "link_broken")


async def test_a_router_that_stands_still_itself_blames_nobody(tmp_path: Path, make_fleet: MakeFleet) -> None:
    async with fleet_of_one(make_fleet, tmp_path) as (fleet, client):
        pid = fleet.process("router-0").pid
        finished = await stream(client, lambda: os.kill(pid, signal.SIGUSR1))
        assert finished.usage.attempts == 1
        assert not said(fleet, "link_broken")
