"""A worker whose processes compute on GPUs of one host: its leader forks them, and they share no memory.

Without GPUs the same processes compute on the CPU, by way of a program that claims to see two of them. Only
NCCL is left out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed, children_of, exact, greedy
from tests.fleet.test_hosts import PROMPTS, assert_like, flags, streams, until_connected
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S
from worker.errors import EXIT_GROUP

ROOT = Path(__file__).resolve().parents[2]
CLAIMS_GPUS = """
from decode_worker.__main__ import build_sides
from worker.role import WorkerRole
from worker.process import command

command.gpus_for = lambda device, environment: ("0", "1")
command.run(WorkerRole.DECODE, build_sides)
"""

pytestmark = pytest.mark.integration


@asynccontextmanager
async def worker(fleet: Fleet, log: Path, *program: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *program], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
async def test_processes_on_the_gpus_of_a_host_are_one_worker(
    run_dir: Path, make_fleet: MakeFleet, tmp_path: Path
) -> None:
    spec = exact(run_dir, placement="disaggregated")
    log = tmp_path / "worker.log"
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        answers, expected = await greedy(client, PROMPTS, 24), await streams(client, PROMPTS)
        program = "-c", CLAIMS_GPUS, *flags(fleet), "--threads", "2"
        async with worker(fleet, log, *program) as process:
            await until_connected(client)
            for got, wanted in zip(await greedy(client, PROMPTS, 24), answers, strict=True):
                assert got.token_ids == wanted.token_ids
                assert got.logprobs == pytest.approx(wanted.logprobs, rel=0, abs=1e-9)
            (follower,) = children_of(process.pid)
            assert_like(await streams(client, PROMPTS, follower, signal.SIGKILL), expected)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == EXIT_GROUP
        assert "its process of rank 1" in log.read_text()
        async with worker(fleet, log, *program) as process:
            await until_connected(client)
            (follower,) = children_of(process.pid)
            assert_like(await streams(client, PROMPTS, process.pid, signal.SIGTERM), expected)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            with pytest.raises(ProcessLookupError):
                os.kill(follower, 0)
        await assert_all_is_freed(fleet, client)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL connects no two parts on one")
async def test_two_gpus_compute_what_one_does(run_dir: Path, make_fleet: MakeFleet, tmp_path: Path) -> None:
    types = ("--dtype", "bfloat16", "--device", "cuda")
    one = FleetSpec(model=DEMO_MODEL, extra_args={"prefill": types, "decode": types}, run_dir=run_dir)
    two = FleetSpec(
        model=DEMO_MODEL,
        tensor_parallel=2,
        extra_args={"prefill": types, "decode": types},
        run_dir=tmp_path / "two",
    )
    found = []
    for spec in (one, two):
        async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
            found.append(await greedy(client, PROMPTS, 1))
            await assert_all_is_freed(fleet, client)
    for got, wanted in zip(found[1], found[0], strict=True):
        assert got.logprobs == pytest.approx(wanted.logprobs, rel=0, abs=0.1)
