"""Workers whose steps several processes compute: the same streams as one process's, in any mix of layouts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton import AsyncClient, Finished, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import (
    FEW,
    TRIES,
    assert_all_is_freed,
    busy_workers,
    children_of,
    greedy,
    metric,
    until,
)
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S
from worker.errors import EXIT_GROUP

pytestmark = pytest.mark.integration

EXACT = ("--dtype", "float64", "--num-blocks", "128", *FEW)
WHOLE, SPLIT = (*EXACT, "--tensor-parallel", "1", "--threads", "1"), (*EXACT, "--tensor-parallel", "2")
PROMPTS = [[3 + (i * step) % 89 for i in range(length)] for step, length in ((1, 70), (3, 5), (7, 41))]
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, presence_penalty=0.5)


def spec(run_dir: Path, *, prefill: tuple[str, ...] | None, decode: tuple[str, ...]) -> FleetSpec:
    """A fleet of one decode worker, which computes the prompts too unless there is a prefill worker."""
    return FleetSpec(
        model=DEMO_MODEL,
        prefill=0 if prefill is None else 1,
        placement="aggregated" if prefill is None else "disaggregated",
        extra_args={"prefill": prefill or (), "decode": decode},
        run_dir=run_dir,
    )


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pids: list[int]) -> None:
    async def are_gone() -> bool:
        return not any(map(is_alive, pids))

    await until(are_gone, f"the processes {pids} are gone")


@asynccontextmanager
async def running(make_fleet: MakeFleet, fleet_spec: FleetSpec) -> AsyncIterator[tuple[Fleet, AsyncClient]]:
    """A fleet and its client; afterwards, no process of its workers is left."""
    async with make_fleet(fleet_spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        workers = [
            fleet.process(name) for name in fleet_spec.process_names if name[:-2] in ("prefill", "decode")
        ]
        followers = [pid for worker in workers for pid in children_of(worker.pid)]
        yield fleet, client
    await until_gone(followers)


async def test_every_mix_of_layouts_gives_the_same_tokens(make_fleet: MakeFleet, tmp_path: Path) -> None:
    mixes = {
        "whole": (None, WHOLE),
        "split": (None, SPLIT),
        "split-whole": (SPLIT, WHOLE),
        "whole-split": (WHOLE, SPLIT),
    }
    await assert_mixes_agree(make_fleet, tmp_path, mixes, PROMPTS, num_followers={SPLIT: 1})


async def assert_mixes_agree(
    make_fleet: MakeFleet,
    folder: Path,
    mixes: Mapping[str, tuple[tuple[str, ...] | None, tuple[str, ...]]],
    prompts: Sequence[list[int]],
    *,
    num_followers: Mapping[tuple[str, ...], int],
) -> None:
    """Every mix, of a prefill worker's flags and a decode worker's, gives the tokens of `whole`.

    Decode workers have so many followers by their flags, and otherwise none.
    """
    answers = {}
    for name, (prefill, decode) in mixes.items():
        async with running(make_fleet, spec(folder / name, prefill=prefill, decode=decode)) as (
            fleet,
            client,
        ):
            assert len(children_of(fleet.process("decode-0").pid)) == num_followers.get(decode, 0)
            answers[name] = await greedy(client, prompts, 24)
            await assert_all_is_freed(fleet, client)
            if prefill is not None:
                num_handed_over = sum(answer.is_handed_over for answer in answers[name])
                assert await metric(fleet, "decode-0", "baton_kv_handoffs_total") >= num_handed_over > 0
    for name in mixes:
        for answer, expected in zip(answers[name], answers["whole"], strict=True):
            assert answer.token_ids == expected.token_ids, name
            assert answer.logprobs == pytest.approx(expected.logprobs, rel=0, abs=1e-9), name


@pytest.mark.long
async def test_the_death_of_any_process_of_a_group_is_a_pause(make_fleet: MakeFleet, run_dir: Path) -> None:
    both = FleetSpec(
        model=DEMO_MODEL,
        prefill=0,
        decode=2,
        placement="aggregated",
        extra_args={"decode": SPLIT},
        run_dir=run_dir,
    )
    await assert_deaths_are_pauses(make_fleet, both, ranks=(1, 0))


async def assert_deaths_are_pauses(
    make_fleet: MakeFleet,
    fleet_spec: FleetSpec,
    ranks: Sequence[int],
    *,
    flags: str = "--tensor-parallel 2",
    num_tokens: int = 300,
    sampling: Sampling = SAMPLING,
) -> None:
    """A stream goes on with its tokens when a process of its worker is killed, one rank after the other.

    If the workers look drafts up, the last of them has verified some.
    """
    stop = Stop(max_tokens=num_tokens, ignore_eos=True)
    async with running(make_fleet, fleet_spec) as (fleet, client):
        expected = await client.complete(PROMPTS[0], sampling=sampling, stop=stop)
        worker = ""
        for rank in ranks:
            for _ in range(TRIES):  # the stream may end before it is known which worker runs it
                if worker:
                    await fleet.revive(worker)
                received, worker, attempts = await struck_stream(fleet, client, rank, sampling, stop)
                assert tuple(received) == expected.choices[0].token_ids
                if worker and attempts >= 2:
                    break
            else:
                raise AssertionError("each stream had ended before its worker was struck")
            process = fleet.process(worker)
            await asyncio.wait_for(process.wait(), PATIENCE_S)
            assert process.exit_code == (EXIT_GROUP if rank else -signal.SIGKILL)
            if rank:
                log = process.log_path.read_text()
                assert f"{flags}: its process of rank {rank} (pid" in log
                assert "was killed by SIGKILL; this worker cannot go on without it" in log
        if fleet_spec.speculate == "lookup":
            [survivor] = {"decode-0", "decode-1"} - {worker}
            # Where others disturbed the measurement of steps, drafts may not pay at first.
            while not await metric(fleet, survivor, "baton_drafted_tokens_total"):
                await client.complete(PROMPTS[0], sampling=sampling, stop=stop)


async def struck_stream(
    fleet: Fleet, client: AsyncClient, rank: int, sampling: Sampling, stop: Stop
) -> tuple[list[int], str, int]:
    """Stream, while the worker loses a process at the twentieth token.

    Return the tokens, the worker's name, which is empty if none ran the stream any more, and the attempts.
    """
    received: list[int] = []
    is_struck, name, attempts = False, "", 0
    async for event in client.generate(PROMPTS[0], sampling=sampling, stop=stop):
        if isinstance(event, Tokens):
            received += event.token_ids
            if len(received) > 20 and not is_struck:
                is_struck = True
                for name in (await busy_workers(client))[:1]:
                    pid = fleet.process(name).pid
                    os.kill([pid, *children_of(pid)][rank], signal.SIGKILL)
        elif isinstance(event, Finished):
            attempts = event.usage.attempts
    return received, name, attempts
