"""`baton quote` as a process: it promises what a request then gets, and sends none."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton import AsyncClient, Stop
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration


def quote(address: str, *flags: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "baton.cli", "quote", "hello", "--json", "--address", address, *flags]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


async def test_a_quote_is_the_promise_without_the_request(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with (
        make_fleet(FleetSpec(model=tiny_llama, run_dir=run_dir)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        [address] = fleet.router_addresses
        code, found = await asyncio.to_thread(quote, address, "--ttft-ms", "60000", "--itl-ms", "60000")
        assert (code, found["verdict"], found["attainable"]) == (0, "accepted", None)
        promise = found["promise"]
        assert (promise["ttft_ms"], promise["tpot_ms"], promise["itl_ms"]) == (60000, None, 60000)
        assert 0 < promise["predicted_ttft_ms"] < 60000
        await assert_all_is_freed(fleet, client)
        completion = await client.complete("hello", stop=Stop(max_tokens=3))
        assert completion.finished.usage.prompt_tokens == found["prompt_tokens"]
