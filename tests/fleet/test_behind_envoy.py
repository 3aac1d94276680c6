"""Two routers behind Envoy, configured as in containers: streams are spread, and outlive their router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from baton import AsyncClient, Sampling, Stop, Timeout, Tokens
from baton.fleet import FleetSpec
from baton.wire.many import BEYOND_FEW
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES
from tests.fleets import DEMO_MODEL
from tests.gateway.picker.running import ENVOY
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.envoy]

NUM_STREAMS = 8
NUM_MANY = BEYOND_FEW.num_alone + BEYOND_FEW.most + 8
MOST_CALLS = BEYOND_FEW.num_alone + 2
PROMPT = [3 + i % 90 for i in range(70)]
STOP = Stop(max_tokens=400, ignore_eos=True)


@asynccontextmanager
async def envoy_before(routers: Sequence[str], folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Yield the addresses of Envoy and of its own facts.

    Only addresses differ from deploy/docker/envoy.yaml.
    """
    door, facts = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = (ROOT / "deploy" / "docker" / "envoy.yaml").read_text(encoding="utf-8")
    wanted = {"0.0.0.0, port_value: 50050": door, "127.0.0.1, port_value: 9901": facts}
    wanted["router, port_value: 50051"], wanted["router-2, port_value: 50051"] = routers
    for written, address in wanted.items():
        assert config.count(f"address: {written}") == 1, written
        host, _, port = address.rpartition(":")
        config = config.replace(f"address: {written}", f"address: {host}, port_value: {port}")
    path = folder / "envoy.yaml"
    path.write_text(config, encoding="utf-8")
    arguments = ("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(str(ENVOY), *arguments)
    try:
        yield door, facts
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()


async def num_calls(facts: str) -> list[int]:
    """Return how many calls each router has had from Envoy."""
    async with httpx.AsyncClient(base_url=f"http://{facts}", timeout=PATIENCE_S) as http:
        found = (await http.get("/clusters", params={"format": "json"})).raise_for_status().json()
    (cluster,) = found["cluster_statuses"]
    totals = [
        int(stat.get("value", 0))
        for host in cluster["host_statuses"]
        for stat in host["stats"]
        if stat["name"] == "rq_total"
    ]
    assert len(totals) == 2
    return totals


async def tokens_of(client: AsyncClient, seed: int, begun: asyncio.Event) -> tuple[list[int], int]:
    stream = client.generate(PROMPT, sampling=Sampling(temperature=1.0, seed=seed), stop=STOP)
    received: list[int] = []
    async for event in stream:
        if isinstance(event, Tokens):
            assert event.first_index == len(received), "a token was lost or repeated"
            received += event.token_ids
            begun.set()
    return received, stream.resumes


@pytest.mark.parametrize("blow", ["kill", pytest.param("pause", marks=pytest.mark.long)])
async def test_streams_of_one_client_are_spread_and_outlive_a_router(
    run_dir: Path, tmp_path: Path, make_fleet: MakeFleet, blow: str
) -> None:
    spec = FleetSpec(model=DEMO_MODEL, timed="demo-cpu", prefill=0, routers=2, run_dir=run_dir)
    async with (
        make_fleet(spec) as fleet,
        envoy_before(fleet.router_addresses, tmp_path) as (door, _),
        AsyncClient([door], timeout=Timeout(connect_s=PATIENCE_S)) as client,
    ):
        for _ in range(TRIES):  # on a machine that lets this process stand still, streams end before the blow
            # Envoy spreads evenly once it has a connection to each router. If the first round leaves a router
            # without one, the second reaches it.
            for _ in range(2):
                expected = await asyncio.gather(
                    *(tokens_of(client, seed, asyncio.Event()) for seed in range(NUM_STREAMS))
                )
            begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
            streams = [
                asyncio.create_task(tokens_of(client, seed, begun[seed])) for seed in range(NUM_STREAMS)
            ]
            await asyncio.gather(*(event.wait() for event in begun))
            getattr(fleet.process("router-0"), blow)()
            received = await asyncio.gather(*streams)
            assert [tokens for tokens, _ in received] == [tokens for tokens, _ in expected]
            assert not any(resumes for _, resumes in expected)
            num_resumes = sum(resumes for _, resumes in received)
            if num_resumes == NUM_STREAMS // 2:
                break
            if blow == "kill":
                await fleet.revive("router-0")
            else:
                fleet.process("router-0").resume()
    assert num_resumes == NUM_STREAMS // 2, "each router had half"


async def test_many_streams_of_one_client_take_few_calls_which_are_spread(
    run_dir: Path, tmp_path: Path, make_fleet: MakeFleet
) -> None:
    spec = FleetSpec(model=DEMO_MODEL, timed="demo-cpu", prefill=0, routers=2, run_dir=run_dir)
    async with (
        make_fleet(spec) as fleet,
        envoy_before(fleet.router_addresses, tmp_path) as (door, facts),
        AsyncClient([door], timeout=Timeout(connect_s=PATIENCE_S)) as client,
        AsyncClient([door], timeout=Timeout(connect_s=PATIENCE_S), multiplex=False) as alone,
    ):

        async def all_of(caller: AsyncClient) -> list[tuple[list[int], int]]:
            return await asyncio.gather(
                *(tokens_of(caller, seed, asyncio.Event()) for seed in range(NUM_MANY))
            )

        expected = [tokens for tokens, _ in await all_of(alone)]
        for _ in range(TRIES):  # a router that stands still for seconds loses its streams, which call again
            before = await num_calls(facts)
            received = await all_of(client)
            calls = [now - then for now, then in zip(await num_calls(facts), before, strict=True)]
            assert [tokens for tokens, _ in received] == expected
            if not any(resumes for _, resumes in received):
                break
    assert sum(before) >= NUM_MANY
    assert sum(calls) <= MOST_CALLS
    assert min(calls) >= BEYOND_FEW.num_alone // 2, "each router had half of those that do not share"
