"""One byte of one block changes in flight: noticed, counted, healed; the output is what it had to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import FleetSpec
from tests.byte_flip_proxy import ByteFlipProxy
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import FEW, assert_all_is_freed, greedy, metric
from tests.model_zoo import stock_generate
from tests.ports import free_port

pytestmark = pytest.mark.integration

ARGS = ("--dtype", "float64", "--num-blocks", "64", *FEW)


async def test_a_corrupt_block_is_recomputed(tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet) -> None:
    prompt = [3 + i % 90 for i in range(100)]
    expected = stock_generate(tiny_llama, prompt, 12).tokens
    port = free_port()
    async with ByteFlipProxy(f"127.0.0.1:{port}", flips=1) as proxy:
        listening = ("--listen", f"127.0.0.1:{port}", "--advertise", proxy.address, "--transport", "grpc")
        spec = FleetSpec(
            model=tiny_llama,
            run_dir=run_dir,
            placement="disaggregated",
            extra_args={"prefill": (*ARGS, *listening), "decode": ARGS},
        )
        async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
            [found] = await greedy(client, [prompt], 12)
            assert proxy.num_flipped == 1
            assert list(found.token_ids) == expected
            assert await metric(fleet, "decode-0", "baton_kv_blocks_corrupt_total") == 1
            await assert_all_is_freed(fleet, client)
