"""A fleet's only decode worker, router or Redis dies under `Keeper`: what runs goes on, exactly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton import AsyncClient, Finished, Sampling, Stop, Timeout, Tokens
from baton.cli.exits import FLEET_FAILED, OK
from baton.fleet import Fleet, FleetEvent
from baton.fleet.processes.events import ProcessRestarted
from tests.fleet.driving import assert_all_is_freed
from tests.fleets import DEMO_MODEL, NewFleet, kept
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(70)]
SAMPLING = Sampling(temperature=1.0, seed=3)
STOP = Stop(max_tokens=400, ignore_eos=True)


@asynccontextmanager
async def kept_fleet(new_fleet: NewFleet) -> AsyncIterator[tuple[Fleet, list[FleetEvent]]]:
    """Timed workers: they are back in seconds, on a busy machine too."""
    events: list[FleetEvent] = []
    async with new_fleet(events.append, timed="demo-cpu") as fleet, kept(fleet, events.append):
        yield fleet, events


@pytest.mark.parametrize("name", ["decode-0", "prefill-0", "router-0", "redis"])
async def test_a_stream_goes_on_when_an_only_process_dies_and_returns(new_fleet: NewFleet, name: str) -> None:
    async with (
        kept_fleet(new_fleet) as (fleet, events),
        AsyncClient(fleet.router_addresses, timeout=Timeout(connect_s=PATIENCE_S)) as client,
    ):
        expected = await client.complete(PROMPT, sampling=SAMPLING, stop=STOP)
        received: list[int] = []
        finished: Finished | None = None
        async for event in client.generate(PROMPT, sampling=SAMPLING, stop=STOP):
            if isinstance(event, Tokens):
                assert event.first_index == len(received)
                if len(received) < 20 <= len(received) + len(event.token_ids):
                    fleet.process(name).kill()
                received += event.token_ids
            elif isinstance(event, Finished):
                finished = event
        assert finished is not None
        assert tuple(received) == expected.choices[0].token_ids
        async with asyncio.timeout(PATIENCE_S):
            while not any(isinstance(entry, ProcessRestarted) and entry.name == name for entry in events):
                await asyncio.sleep(0.05)
        again = await client.complete(PROMPT, sampling=SAMPLING, stop=STOP)
        assert again.choices == expected.choices
        await assert_all_is_freed(fleet, client)


def decode_worker_of(launcher: int) -> int:
    """The process of the launcher's only decode worker."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"decode_worker" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    raise AssertionError(f"{launcher} has no decode worker")


@pytest.mark.parametrize("flags", [(), ("--no-restart",)], ids=["as it is", "without restarts"])
def test_baton_up_says_that_it_brings_a_worker_back_or_ends(tmp_path: Path, flags: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "baton.cli", "up", "--port", "0", "--no-http", *flags]
    command += ["--timed", "demo-cpu", "--run-dir", str(tmp_path), "--model", str(DEMO_MODEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ended_in_time(process):
        assert process.stdout is not None
        until_line(process.stdout, "Ctrl-C")
        os.kill(decode_worker_of(process.pid), signal.SIGKILL)
        if flags:
            until_line(process.stdout, "All processes have stopped")
        else:
            until_line(process.stdout, "decode-0   is started again in 0.5 s")
            until_line(process.stdout, "decode-0   serves again")
            process.send_signal(signal.SIGINT)
            process.stdout.read()
    assert process.returncode == (FLEET_FAILED if flags else OK)


@contextlib.contextmanager
def ended_in_time(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends what hangs, so that nobody waits for its next line forever, and what a failure leaves."""
    timer = threading.Timer(3 * PATIENCE_S, process.kill)
    timer.start()
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()


def until_line(lines: Iterable[str], part: str) -> None:
    for line in lines:
        if part in line:
            return
    raise AssertionError(f"the launcher ended without a word of {part!r}")
