"""The beginning of a prompt comes from a worker that has it; a source that fails costs time alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from kvtransfer.receiving.links import FORGET_S
from tests.byte_flip_proxy import MIN_MESSAGE_BYTES, ByteFlipProxy
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import FEW, Answer, ask, labelled, metric, until
from tests.fleets import DEMO_MODEL
from tests.ports import free_port

pytestmark = pytest.mark.integration

NUM_TOKENS = 1300
"""So many take long to compute, and a fetch may take as long: on a busy machine it is late by far less."""
PROMPTS = [[3 + (i * step) % 89 for i in range(NUM_TOKENS)] for step in (7, 3, 5)]
OTHERS = [[3 + (i * 11) % 83 for i in range(NUM_TOKENS)]]
BLOCK_TOKENS = 16
FEW_BLOCKS = 100
"""Enough for one prompt, and not for two."""
LENDER_BLOCKS = 150
"""For a lender with a disk: not enough for two prompts, and some left beside the sequence that decodes."""
COMPUTES, LENDS = "prefill-0", "decode-0"


def spec_of(
    run_dir: Path,
    *,
    share: bool = True,
    computing: tuple[str, ...] = (),
    lending: tuple[str, ...] = (),
    has_spare: bool = False,
) -> FleetSpec:
    """Return a fleet whose prefill worker soon forgets what its decode worker still has.

    `computing` and `lending` are flags of these two. A spare decode worker has less memory, so that it is
    used without the other one alone.
    """
    args = ("--dtype", "float64", *FEW)
    return FleetSpec(
        model=DEMO_MODEL,
        prefill=1,
        decode=2 if has_spare else 1,
        placement="disaggregated",
        share_prefixes=share,
        extra_args={
            "prefill": (*args, "--num-blocks", str(FEW_BLOCKS), *computing),
            "decode": (*args, "--num-blocks", "2000"),
            LENDS: lending,
            **({"decode-1": ("--num-blocks", "200")} if has_spare else {}),
        },
        run_dir=run_dir,
    )


async def outcomes(fleet: Fleet, name: str = COMPUTES) -> dict[str, float]:
    return await labelled(fleet, name, "baton_kv_prefix_fetches_total", "outcome")


async def ask_until(fleet: Fleet, *wanted: str) -> tuple[int, Answer]:
    """Ask for one prompt after the other until a fetch has ended so; return its place and its answer.

    A fetch that takes longer than computing is stopped, as may happen on a machine that does much else. Then
    none is tried for `FORGET_S`. An answer of several attempts has found what earlier ones have computed.
    """
    for place, prompt in enumerate(PROMPTS):
        (answer,) = await ask(fleet, [prompt])
        ended = await outcomes(fleet)
        if any(ended.get(outcome) for outcome in wanted):
            return place, answer
        await ask(fleet, OTHERS)
        await asyncio.sleep(FORGET_S)
    raise AssertionError(f"no fetch has ended as {wanted}: {ended}")


async def test_a_prefix_comes_from_a_worker_that_has_it(make_fleet: MakeFleet, run_dir: Path) -> None:
    async with make_fleet(spec_of(run_dir)) as fleet:
        firsts = await ask(fleet, PROMPTS)
        await ask(fleet, OTHERS)
        place, again = await ask_until(fleet, "completed")
        num_fetched = await metric(fleet, COMPUTES, "baton_kv_prefix_blocks_fetched_total")
        num_lent = await metric(fleet, LENDS, "baton_kv_prefix_blocks_lent_total")
    assert {first.cached_prompt_tokens for first in firsts if first.attempts == 1} <= {0}
    assert num_lent >= num_fetched > 0
    if again.attempts == 1:
        assert again.cached_prompt_tokens == (NUM_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert num_fetched >= again.cached_prompt_tokens // BLOCK_TOKENS
    assert again.token_ids == firsts[place].token_ids
    assert again.logprobs == pytest.approx(firsts[place].logprobs)


async def test_a_promise_counts_what_can_be_fetched(make_fleet: MakeFleet, run_dir: Path) -> None:
    async with make_fleet(spec_of(run_dir)) as fleet:
        await ask(fleet, [PROMPTS[0], *OTHERS])
        async with AsyncClient(fleet.router_addresses) as client:

            async def is_sooner() -> bool:
                known, new = await client.quote(PROMPTS[0]), await client.quote(PROMPTS[1])
                return known.promise.predicted_ttft_ms < new.promise.predicted_ttft_ms

            await until(is_sooner, "the directory knows what is left at each worker")


async def test_workers_without_the_flag_compute(make_fleet: MakeFleet, run_dir: Path) -> None:
    async with make_fleet(spec_of(run_dir, share=False)) as fleet:
        (first,) = await ask(fleet, PROMPTS[:1])
        await ask(fleet, OTHERS)
        (again,) = await ask(fleet, PROMPTS[:1])
        assert await outcomes(fleet) == {}
    assert again.cached_prompt_tokens < NUM_TOKENS // 2 or again.attempts > 1, "most has left the memory"
    assert again.token_ids == first.token_ids


async def test_bytes_that_change_on_the_way_are_computed(make_fleet: MakeFleet, run_dir: Path) -> None:
    port = free_port()
    async with ByteFlipProxy(f"127.0.0.1:{port}", flips=1) as proxy:
        lending = ("--listen", f"127.0.0.1:{port}", "--advertise", proxy.address)
        spec = spec_of(run_dir, computing=("--transport", "grpc"), lending=lending)
        async with make_fleet(spec) as fleet:
            firsts = await ask(fleet, PROMPTS)
            await ask(fleet, OTHERS)
            place, again = await ask_until(fleet, "corrupt")
            assert proxy.num_flipped == 1
            assert await metric(fleet, COMPUTES, "baton_kv_blocks_corrupt_total") == 1
    assert again.cached_prompt_tokens < NUM_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS or again.attempts > 1
    assert again.token_ids == firsts[place].token_ids


class HoldingProxy(ByteFlipProxy):
    """Stops each connection before the first frame of a block, until it is told to go on."""

    def __init__(self, target: str) -> None:
        super().__init__(target, flips=0)
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if len(data) > MIN_MESSAGE_BYTES:
            self.is_held.set()
            await self.go_on.wait()
        await super()._forward(data, writer)


@pytest.mark.parametrize("fate", ["killed", "hangs"])
async def test_a_source_that_fails_in_the_middle_costs_time_alone(
    make_fleet: MakeFleet, run_dir: Path, fate: str
) -> None:
    port = free_port()
    async with HoldingProxy(f"127.0.0.1:{port}") as proxy:
        lending = ("--listen", f"127.0.0.1:{port}", "--advertise", proxy.address)
        spec = spec_of(run_dir, computing=("--transport", "grpc"), lending=lending, has_spare=True)
        async with make_fleet(spec) as fleet:
            firsts = await ask(fleet, PROMPTS)
            await ask(fleet, OTHERS)

            async def strike() -> None:
                await proxy.is_held.wait()
                if fate == "killed":
                    fleet.process(LENDS).kill()
                    proxy.go_on.set()

            striking = asyncio.create_task(strike())
            place, again = await ask_until(fleet, "sender_lost", "timed_out")
            proxy.go_on.set()
            await striking
    assert again.token_ids == firsts[place].token_ids


@pytest.mark.long
async def test_a_prefix_on_the_disk_of_another_worker_is_fetched(
    make_fleet: MakeFleet, run_dir: Path, tmp_path: Path
) -> None:
    """Each prompt has pushed the one before out of both memories."""
    lending = ("--num-blocks", str(LENDER_BLOCKS), "--kv-disk", str(tmp_path / "disk"))
    async with make_fleet(spec_of(run_dir, lending=lending)) as fleet:
        firsts = await ask(fleet, PROMPTS)
        await ask(fleet, OTHERS)

        async def is_written() -> bool:
            written = await labelled(fleet, LENDS, "baton_kv_disk_blocks_total", "outcome")
            return written.get("written", 0.0) >= (len(PROMPTS) - 1) * (NUM_TOKENS // BLOCK_TOKENS)

        await until(is_written, "the first prompts' blocks are on the disk")
        place, again = await ask_until(fleet, "completed", "shortened")
        num_read = (await labelled(fleet, LENDS, "baton_kv_disk_blocks_total", "outcome"))["read"]
    assert num_read > 0
    assert 0 < again.cached_prompt_tokens <= num_read * BLOCK_TOKENS or again.attempts > 1
    assert again.token_ids == firsts[place].token_ids


@pytest.mark.long
async def test_a_disk_that_fails_the_lender_costs_time_alone(
    make_fleet: MakeFleet, run_dir: Path, tmp_path: Path
) -> None:
    """The folder becomes a file below the running worker: the directory names blocks that cannot be read."""
    disk = tmp_path / "disk"
    lending = ("--num-blocks", str(LENDER_BLOCKS), "--kv-disk", str(disk))
    async with make_fleet(spec_of(run_dir, lending=lending)) as fleet:
        firsts = await ask(fleet, PROMPTS)
        await ask(fleet, OTHERS)
        disk.rename(tmp_path / "away")
        disk.write_text("")
        place, again = await ask_until(fleet, "refused", "shortened")
        assert await metric(fleet, LENDS, "baton_kv_disk_errors_total") > 0
    assert again.token_ids == firsts[place].token_ids
