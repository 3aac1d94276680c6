"""A client in another language, made from the contract's files alone, against real fleets.

`make test-node` installs Node.js and the client's packages, and runs these.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import DEMO_MODEL

pytestmark = [pytest.mark.node, pytest.mark.integration, pytest.mark.timeout(300)]

CLIENT = Path(__file__).parent / "node"


def run(files: list[str], environment: Mapping[str, str]) -> None:
    """Run files of the client's tests one after another; Node's own report is the failure's message."""
    command = ["node", "--test", "--test-concurrency=1", "--test-timeout=120000", *files]
    ran = subprocess.run(
        command,
        cwd=CLIENT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


async def test_a_client_of_the_contract_alone_is_served(tmp_path: Path) -> None:
    spec = FleetSpec(
        model=DEMO_MODEL, run_dir=tmp_path / "run", decode=2, routers=2, placement="disaggregated"
    )
    async with Fleet(spec) as fleet:
        addresses = ",".join(fleet.router_addresses)
        pids = {process.name: process.pid for process in fleet.processes}
        environment = {"BATON_ADDRESSES": addresses, "BATON_PIDS": json.dumps(pids)}
        # The last file kills processes of the fleet.
        for name in ("streaming", "errors", "deaths"):
            await asyncio.to_thread(run, [f"{name}.test.mjs"], environment)


async def test_a_secured_fleet_serves_a_client_with_its_credentials(tmp_path: Path) -> None:
    spec = FleetSpec(model=DEMO_MODEL, run_dir=tmp_path / "run", secure=tmp_path / "secure")
    async with Fleet(spec) as fleet:
        assert fleet.secured is not None
        shown = fleet.secured.credentials
        secure = {"ca": shown.ca, "cert": shown.cert, "key": shown.key, "apiKey": _secret(shown.api_key_file)}
        environment = {
            "BATON_ADDRESSES": ",".join(fleet.router_addresses),
            "BATON_SECURE": json.dumps(secure, default=str),
        }
        await asyncio.to_thread(run, ["secured.test.mjs"], environment)


def test_what_typescript_generators_make_of_the_contract_compiles() -> None:
    run(["generators.test.mjs"], {"BATON_BUF": str(Path(sys.executable).with_name("buf"))})


def _secret(path: Path | None) -> str:
    assert path is not None
    return path.read_text(encoding="ascii").strip()
