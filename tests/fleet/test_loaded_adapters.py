"""A fleet that loads LoRA adapters when requests ask for them, with room for fewer than there are."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton import AsyncClient, Finished, Sampling, Slo, Stop, Tokens
from baton.errors import BatonError, InvalidRequest
from baton.fleet import Fleet, FleetSpec
from baton.types.snapshots import WorkerState
from tests.adapters import copy_adapter, merge, write_adapter
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed, busy_workers, exact, labelled, snapshot, until
from tests.fleets import DEMO_MODEL
from tests.model_zoo import stock_generate
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

LENGTH = 24
GREEDY = Sampling(temperature=0.0)
PROMPT = [3 + i * 7 % 90 for i in range(40)]
RANK = 7
"""One adapter of this rank takes just less than a megabyte of the demo model in float64."""


SPLIT_RANK = 20
"""The same of a process of four."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for seed, (name, rank) in enumerate((("red", 4), ("blue", RANK), ("green", 2)), start=1):
        write_adapter(DEMO_MODEL, folder / name, seed=seed, rank=rank)
    return folder


@pytest.fixture
def adapters(tmp_path: Path, sources: Path) -> Path:
    """Return the folder of the fleet's adapters, with two."""
    for name in ("red", "blue"):
        shutil.copytree(sources / name, tmp_path / "adapters" / name)
    return tmp_path / "adapters"


def spec_of(run_dir: Path, adapters: Path, **counts: Any) -> FleetSpec:
    return exact(
        run_dir,
        lora_dir=adapters,
        lora_memory_mb=1,
        lora_rank=RANK,
        placement="disaggregated" if counts.get("prefill") else "aggregated",
        **counts,
    )


def expected(sources: Path, name: str, num_tokens: int = LENGTH, prompt: list[int] = PROMPT) -> list[int]:
    merged = merge(DEMO_MODEL, sources / name, sources / f"merged-{name}") if name else DEMO_MODEL
    return stock_generate(merged, prompt, num_tokens).tokens


async def tokens(client: AsyncClient, name: str, num_tokens: int = LENGTH) -> list[int]:
    stop = Stop(max_tokens=num_tokens, ignore_eos=True)
    (choice,) = (await client.complete(PROMPT, sampling=GREEDY, stop=stop, adapter=name)).choices
    return list(choice.token_ids)


async def loads(fleet: Fleet, worker: str) -> dict[str, float]:
    """Return how many adapters a worker has loaded, evicted and refused."""
    return await labelled(fleet, worker, "baton_adapters_total", "outcome")


async def until_known(client: AsyncClient) -> None:
    """Wait until all workers have found the two adapters: a slow machine may take longer than to start."""

    async def is_known() -> bool:
        return all(worker.loadable_adapters == 2 for worker in (await snapshot(client)).workers)

    await until(is_known, "the adapters are known")


async def worker_of(client: AsyncClient, worker_id: str) -> WorkerState:
    return next(each for each in (await snapshot(client)).workers if each.worker_id == worker_id)


@pytest.mark.parametrize(
    "counts",
    [
        {"prefill": 0},
        {"prefill": 1},
        pytest.param({"prefill": 0, "tensor_parallel": 2, "pipeline_parallel": 2}, marks=pytest.mark.long),
    ],
    ids=["aggregated", "disaggregated", "several-processes"],
)
async def test_streams_of_more_adapters_than_fit_are_right_and_take_turns(
    make_fleet: MakeFleet, run_dir: Path, adapters: Path, sources: Path, counts: dict[str, int]
) -> None:
    spec = spec_of(run_dir, adapters, decode=1, **counts)
    if spec.tensor_parallel > 1:  # a process has half of most of an adapter's matrices, of half the layers
        spec = replace(spec, lora_rank=SPLIT_RANK)
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        await until_known(client)
        names = ["red", "blue", ""] * 4
        found = await asyncio.gather(*(tokens(client, name) for name in names))
        num = await loads(fleet, "decode-0")
        state = await worker_of(client, "decode-0")
        await assert_all_is_freed(fleet, client)
    for name, answer in zip(names, found, strict=True):
        assert answer == expected(sources, name), name
    assert len({tuple(answer) for answer in found}) == 3
    assert num["loaded"] - num["evicted"] == 1, "there is room for one"
    assert num["evicted"] >= 1
    assert "refused" not in num
    assert state.loadable_adapters == 2


@pytest.mark.long
async def test_a_killed_worker_s_stream_goes_on_with_its_adapter(
    make_fleet: MakeFleet, run_dir: Path, adapters: Path, sources: Path
) -> None:
    num_tokens = 200
    async with (
        make_fleet(spec_of(run_dir, adapters, prefill=0, decode=2)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        await until_known(client)
        stop = Stop(max_tokens=num_tokens, ignore_eos=True)
        for _ in range(TRIES):  # it may end before it is known which worker runs it
            received: list[int] = []
            killed: list[str] | None = None
            attempts = 0
            async for event in client.generate(PROMPT, sampling=GREEDY, stop=stop, adapter="red"):
                if isinstance(event, Tokens):
                    assert event.first_index == len(received)
                    received += event.token_ids
                elif isinstance(event, Finished):
                    attempts = event.usage.attempts
                if len(received) > 20 and killed is None:
                    killed = (await busy_workers(client))[:1]
                    for name in killed:
                        fleet.process(name).kill()
            assert received == expected(sources, "red", num_tokens)
            if killed and attempts >= 2:
                break
            for name in killed or ():
                await fleet.revive(name)
            await until_known(client)
        else:
            raise AssertionError("each stream had ended before its worker was killed")
        others = "decode-1" if killed == ["decode-0"] else "decode-0"
        assert (await loads(fleet, others))["loaded"] == 1
        await assert_all_is_freed(fleet, client)


async def test_routers_are_told_who_has_loaded_an_adapter(
    make_fleet: MakeFleet, run_dir: Path, adapters: Path
) -> None:
    """Where requests go depends on what real steps took; scripted workers show that loading is counted."""
    async with (
        make_fleet(spec_of(run_dir, adapters, prefill=0, decode=2)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        await until_known(client)
        before = await client.quote(PROMPT, slo=Slo(ttft_ms=60_000), adapter="red")
        assert before.promise.predicted_ttft_ms is not None
        for name in ("red", "red", "red", "red", "blue"):
            await tokens(client, name)
        num_loaded = 0.0
        for worker_id in ("decode-0", "decode-1"):
            counts = await loads(fleet, worker_id)
            assert counts.get("loaded", 0) <= 2, "a request found its adapter loaded and it was loaded again"
            num_loaded += counts.get("loaded", 0)

            async def is_told(worker_id: str = worker_id, counts: dict[str, float] = counts) -> bool:
                workers = (await snapshot(client)).workers
                [found] = [each for each in workers if each.worker_id == worker_id]
                in_memory = counts.get("loaded", 0) - counts.get("evicted", 0)
                return len(found.loaded_adapters) == in_memory

            await until(is_told, "the router knows what this worker has loaded")
        assert num_loaded >= 2


async def test_adapters_come_change_and_are_refused_while_the_fleet_serves(
    make_fleet: MakeFleet, run_dir: Path, adapters: Path, sources: Path
) -> None:
    spec = spec_of(run_dir, adapters, prefill=0, decode=1, gateways=1)
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        await until_known(client)
        with pytest.raises(InvalidRequest, match=r"adapter is 'green'; accepted: 'blue', 'red', or leave it"):
            await tokens(client, "green")
        assert await tokens(client, "red") == expected(sources, "red")
        copy_adapter(sources / "red", adapters / "wrong", r=RANK + 1)
        shutil.copytree(sources / "green", adapters / "green")

        async def names() -> tuple[str, ...]:
            (model,) = await client.models()
            return model.adapters

        async def is_found() -> bool:
            return await names() == ("blue", "green", "red")

        await until(is_found, "a new adapter is found")
        assert await tokens(client, "green") == expected(sources, "green")

        async def why_refused() -> str:
            with pytest.raises(InvalidRequest) as refused:
                await tokens(client, "wrong")
            return str(refused.value)

        async def is_read() -> bool:
            return "of this one" in await why_refused()

        await until(is_read, "a wrong adapter is read")
        assert "lora_A.weight has shape [4, " in await why_refused()
        async with httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http:
            listed = (await http.get("/v1/models")).json()["data"]
        base = DEMO_MODEL.name
        assert [each["id"] for each in listed] == [base, f"{base}:blue", f"{base}:green", f"{base}:red"]

        # Other files under the same name: other tokens, and no KV of those before.
        shutil.rmtree(adapters / "red")
        shutil.copytree(sources / "blue", adapters / "red")

        async def is_changed() -> bool:
            try:
                return await tokens(client, "red") == expected(sources, "blue")
            except BatonError:  # the folder is looked at in the middle
                return False

        await until(is_changed, "changed files are another adapter")
        await assert_all_is_freed(fleet, client)


async def test_a_name_is_no_path(make_fleet: MakeFleet, run_dir: Path, adapters: Path, sources: Path) -> None:
    """Adapters beside the folder are nobody's business."""
    shutil.copytree(sources / "green", adapters.parent / "green")
    async with (
        make_fleet(spec_of(run_dir, adapters, prefill=0, decode=1)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        await until_known(client)
        for name in ("../green", str(adapters.parent / "green"), "red/../../green", "."):
            with pytest.raises(InvalidRequest, match="accepted: 'blue', 'red', or leave it empty"):
                await tokens(client, name)
        assert await tokens(client, "red") == expected(sources, "red")
