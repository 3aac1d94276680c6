"""Prefixes outlive a fleet on its disk; a disk that fails costs nothing but that."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from kvtransfer.tiers.read_queue import FORGET_S
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import FEW, Answer, ask, labelled, metric, snapshot, until
from tests.fleets import DEMO_MODEL
from tests.forked import ROOT, Zygote
from tests.redis_server import redis_server
from tests.zygote import Order
from worker.errors import EXIT_CONFIG

pytestmark = pytest.mark.integration
PLACEMENTS = ["aggregated", pytest.param("disaggregated", marks=pytest.mark.long)]

NUM_TOKENS = 2600
"""So many take long to compute, and a read may take as long: on a busy machine it is late by far less."""
PROMPT = [3 + i * 7 % 90 for i in range(NUM_TOKENS)]
OTHERS = [[3 + (i * step) % 89 for i in range(NUM_TOKENS)] for step in (3, 5, 11, 13)]
NUM_BLOCKS = 360
"""Fewer than the blocks of three prompts."""
BLOCK_TOKENS = 16
BLOCKS_PER_MB = 8
HOST_MB = 20
"""For a part of the blocks that leave the pool."""


def spec_of(
    run_dir: Path, disk: Path | None, placement: str = "aggregated", num_computing: int = 1
) -> FleetSpec:
    """Return a fleet in which so many workers compute prompts."""
    args = ("--dtype", "float64", "--num-blocks", str(NUM_BLOCKS), *FEW)
    return FleetSpec(
        model=DEMO_MODEL,
        prefill=num_computing if placement == "disaggregated" else 0,
        decode=1 if placement == "disaggregated" else num_computing,
        placement=placement,
        kv_disk=disk,
        extra_args={"prefill": args, "decode": args},
        run_dir=run_dir,
    )


async def ask_until_read(fleet: Fleet, prompts: list[list[int]]) -> tuple[int, Answer]:
    """Ask for one prompt after the other until the KV of one is read; return its place and its answer.

    A read that takes longer than computing is stopped, as may happen on a machine that does much else. Then
    none is tried for `FORGET_S`. What an earlier attempt has computed is not read either.
    """
    for place, prompt in enumerate(prompts):
        (answer,) = await ask(fleet, [prompt])
        if answer.cached_prompt_tokens and answer.attempts == 1:
            return place, answer
        await asyncio.sleep(FORGET_S)
    raise AssertionError("no prompt was read")


async def num_blocks(fleet: Fleet, name: str, outcome: str) -> float:
    return (await labelled(fleet, name, "baton_kv_disk_blocks_total", "outcome")).get(outcome, 0.0)


@pytest.mark.parametrize("placement", PLACEMENTS)
async def test_a_prefix_outlives_the_fleet(make_fleet: MakeFleet, tmp_path: Path, placement: str) -> None:
    computes = "decode-0" if placement == "aggregated" else "prefill-0"
    prompts = [PROMPT, *OTHERS]
    async with make_fleet(spec_of(tmp_path / "first", tmp_path / "disk", placement)) as fleet:
        firsts = await ask(fleet, prompts)
    assert list((tmp_path / "disk" / computes).rglob("*.kv")), "blocks are written when a worker ends"
    async with make_fleet(spec_of(tmp_path / "second", tmp_path / "disk", placement)) as fleet:
        place, again = await ask_until_read(fleet, prompts)
        num_read = await num_blocks(fleet, computes, "read")
    # How many are read before computing is faster depends on what else this machine does.
    assert again.cached_prompt_tokens <= num_read * BLOCK_TOKENS
    assert {first.cached_prompt_tokens for first in firsts if first.attempts == 1} <= {0}
    assert again.token_ids == firsts[place].token_ids
    assert again.logprobs == pytest.approx(firsts[place].logprobs)


@pytest.mark.long
async def test_a_prefix_that_was_pushed_out_of_memory_is_found(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """In host memory, which has no room for all, or on the disk. Two processes compute, on one pool."""
    prompts = [PROMPT, *OTHERS]
    spec = spec_of(tmp_path / "run", tmp_path / "disk")
    async with make_fleet(replace(spec, kv_host_memory_mb=HOST_MB, tensor_parallel=2)) as fleet:
        firsts = await ask(fleet, prompts)

        async def is_written() -> bool:
            return await num_blocks(fleet, "decode-0", "written") >= len(PROMPT) // BLOCK_TOKENS

        await until(is_written, "the prompt's blocks are on the disk")
        place, again = await ask_until_read(fleet, prompts[2:])  # the pool has no more than their beginning
        in_host = await labelled(fleet, "decode-0", "baton_kv_host_blocks_total", "outcome")
        async with AsyncClient(fleet.router_addresses) as client:
            (worker,) = (await snapshot(client)).workers
        assert in_host["read"] > 0
        assert in_host["kept"] > in_host["evicted"] > 0
        assert 0 < (worker.host_blocks or 0) <= HOST_MB * BLOCKS_PER_MB
        assert again.token_ids == firsts[2 + place].token_ids
        place, again = await ask_until_read(fleet, prompts[:2])
        assert again.token_ids == firsts[place].token_ids


@pytest.mark.parametrize("placement", PLACEMENTS)
async def test_a_prompt_goes_to_the_worker_whose_disk_has_its_beginning(
    make_fleet: MakeFleet, tmp_path: Path, placement: str
) -> None:
    role, disk = "decode" if placement == "aggregated" else "prefill", tmp_path / "disk"
    async with make_fleet(spec_of(tmp_path / "first", disk, placement)) as fleet:
        firsts = await ask(fleet, [PROMPT, OTHERS[1]])
    # Of two idle workers the first is taken, unless the other one has something.
    (disk / f"{role}-0").rename(disk / f"{role}-1")
    async with make_fleet(spec_of(tmp_path / "second", disk, placement, num_computing=2)) as fleet:

        async def drawn() -> list[float]:
            return [
                await metric(fleet, f"{role}-{number}", "baton_output_tokens_total") for number in range(2)
            ]

        async with AsyncClient(fleet.router_addresses) as client:
            with_disk, without = await client.quote(PROMPT), await client.quote(OTHERS[0])
            workers = (await snapshot(client)).workers
            on_disk = {worker.worker_id: worker.disk_blocks for worker in workers}
        for first, prompt in zip(firsts, (PROMPT, OTHERS[1]), strict=True):
            read_before, drawn_before = await num_blocks(fleet, f"{role}-1", "read"), await drawn()
            (again,) = await ask(fleet, [prompt])
            num_read = await num_blocks(fleet, f"{role}-1", "read") - read_before
            num_drawn = [after - before for before, after in zip(drawn_before, await drawn(), strict=True)]
            assert again.token_ids == first.token_ids
            # Otherwise the worker was starved: it was given up, or was late and so not the first to be taken.
            if again.attempts == 1 and num_drawn[1]:
                break
    assert on_disk[f"{role}-0"] == 0
    assert (on_disk[f"{role}-1"] or 0) >= len(PROMPT) // BLOCK_TOKENS
    assert with_disk.promise.predicted_ttft_ms < without.promise.predicted_ttft_ms
    assert num_drawn[0] == 0 < num_drawn[1]
    # How many are read before computing is faster depends on what else this machine does.
    assert again.cached_prompt_tokens == num_read * BLOCK_TOKENS


async def test_damaged_files_cost_only_the_prefix(make_fleet: MakeFleet, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    async with make_fleet(spec_of(tmp_path / "first", disk)) as fleet:
        (first,) = await ask(fleet, [PROMPT])
    files = list(disk.rglob("*.kv"))
    assert files
    for file in files:
        with file.open("r+b") as damaged:
            damaged.seek(-5, os.SEEK_END)
            damaged.write(b"wrong")
    async with make_fleet(spec_of(tmp_path / "second", disk)) as fleet:
        (again,) = await ask(fleet, [PROMPT])
        assert await num_blocks(fleet, "decode-0", "refused") == 1, "nothing behind it is looked at"
    assert again.cached_prompt_tokens == 0 or again.attempts > 1
    assert again.token_ids == first.token_ids


@pytest.mark.long
async def test_a_disk_that_is_gone_is_served_without(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """The folder becomes a file below the running worker: each call fails."""
    disk = tmp_path / "disk"
    async with make_fleet(spec_of(tmp_path / "run", disk)) as fleet:
        (first,) = await ask(fleet, [PROMPT])
        (disk / "decode-0").rename(tmp_path / "away")
        (disk / "decode-0").write_text("")
        await ask(fleet, OTHERS)

        async def is_noticed() -> bool:
            return await metric(fleet, "decode-0", "baton_kv_disk_errors_total") > 0

        await until(is_noticed, "the disk's errors are counted")
        (again,) = await ask(fleet, [PROMPT])
        assert again.token_ids == first.token_ids


def test_a_wrong_path_is_refused_before_a_model_is_read(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "kv"
    assert refusal(zygote, path, tmp_path / "log") == (
        f"--kv-disk is '{path}' (Not a directory); accepted: a folder that this process can write to, or make"
    )


def test_a_folder_for_everybody_is_refused_before_a_model_is_read(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.mkdir()
    path.chmod(0o777)
    assert refusal(zygote, path, tmp_path / "log") == (
        f"--kv-disk is '{path}', whose mode 0777 lets others write to it; accepted: a folder of this "
        "process's user that nobody else can write to, or a path where it can make one"
    )
    assert not list(path.iterdir())


def refusal(zygote: Zygote, disk: Path, log: Path) -> str:
    """Return the last words of a worker that refuses its folder."""
    with redis_server() as server, log.open("wb") as stderr:
        flags = "--model", str(DEMO_MODEL), "--redis", server.url, "--kv-disk", str(disk)
        with closing(zygote.fork(Order("decode_worker", flags, str(ROOT), {}), stderr)) as worker:
            assert worker.wait() == EXIT_CONFIG
    return log.read_text().splitlines()[-1]
