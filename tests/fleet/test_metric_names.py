"""A fleet's metrics under the names of OpenTelemetry and of vLLM say what they say under its own."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from baton import AsyncClient, Stop
from baton.fleet import Fleet
from benchmarks.doors.observe import scrape
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import exact, until
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

NAMES = ("--metric-names", "vllm")
NUM_REQUESTS = 3
MAX_TOKENS = 5


async def sums(fleet: Fleet) -> dict[str, float]:
    """Return the sum of each series over the fleet's processes, as a dashboard has it."""
    added: dict[str, float] = defaultdict(float)
    for process in fleet.processes:
        if process.name != "redis":
            for sample in await scrape(process.metrics_address):
                assert sample.labels.get("model_name", DEMO_MODEL.name) == DEMO_MODEL.name
                if "le" not in sample.labels:
                    added[sample.name] += sample.value
    return added


async def test_every_name_has_the_values_of_ours(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = exact(
        run_dir, placement="disaggregated", more={"prefill": NAMES, "decode": NAMES, "router": NAMES}
    )
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        for _ in range(NUM_REQUESTS):
            await client.complete("A list is", stop=Stop(max_tokens=MAX_TOKENS, ignore_eos=True))
        found: dict[str, float] = {}

        async def is_over() -> bool:
            """Return whether what was held for the answers is given up."""
            found.update(await sums(fleet))
            return found["vllm:kv_cache_usage_perc"] == 0

        await until(is_over, "blocks are free again")
    renamed = {
        "gen_ai_server_request_duration_seconds": "baton_e2e_seconds",
        "gen_ai_server_time_to_first_token_seconds": "baton_ttft_seconds",
        "gen_ai_server_time_per_output_token_seconds": "baton_tpot_seconds",
        "vllm:e2e_request_latency_seconds": "baton_e2e_seconds",
        "vllm:time_to_first_token_seconds": "baton_ttft_seconds",
        "vllm:request_time_per_output_token_seconds": "baton_tpot_seconds",
        "vllm:request_queue_time_seconds": "baton_queue_seconds",
    }
    for other, own in renamed.items():
        assert {found[f"{other}_count"], found[f"{own}_count"]} == {NUM_REQUESTS}, other
        assert found[f"{own}_sum"] == pytest.approx(found[f"{other}_sum"])
    assert found["vllm:generation_tokens_total"] == NUM_REQUESTS * MAX_TOKENS
    assert found["vllm:inter_token_latency_seconds_count"] == NUM_REQUESTS * (MAX_TOKENS - 1)
    assert found["vllm:cache_config_info"] == 2
    for idle in ("num_requests_running", "num_requests_waiting", "num_preemptions_total"):
        assert found[f"vllm:{idle}"] == 0, idle
