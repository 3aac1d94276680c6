"""The TypeScript SDK in Node.js, against real fleets. `make test` installs what this needs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from baton import AsyncClient
from baton.fleet import Fleet, FleetEvent
from baton.fleet.processes.events import ProcessRestarted
from tests.clients.node import BIN, SDK
from tests.fleets import NewFleet, kept
from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.node, pytest.mark.integration, pytest.mark.timeout(900)]

STRICT = ["--strict", "--noEmit", "--allowJs", "--checkJs", "--module", "nodenext", "--target", "es2023"]


async def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program of Node's; its own report is the failure's message."""
    ran = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


async def run_tests(name: str, environment: Mapping[str, str]) -> None:
    await run(["node", "--test", "--test-timeout=240000", f"test/{name}.test.ts"], SDK, environment)


async def until_idle(client: AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for snapshot in client.watch(0.1):
            if not any(worker.running or worker.waiting for worker in snapshot.workers):
                return


async def run_quick_start(folder: Path, address: str) -> None:
    """Do in an empty folder what docs/typescript.md says."""
    document = (ROOT / "docs" / "typescript.md").read_text(encoding="utf-8")
    found = re.search(r"^```javascript (\S+)\n(.*?)^```$", document, flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    name, text = found.groups()
    await run(["npm", "run", "build", "--silent"], SDK)
    packed = await run(["npm", "pack", "--silent", "--pack-destination", str(folder)], SDK)
    await run(["npm", "install", "--silent", "--prefer-offline", packed.strip()], folder)
    (folder / name).write_text(text.replace("127.0.0.1:50051", address), encoding="utf-8")
    assert len(await run(["node", name], folder)) > 16
    types = ["--types", "node", "--typeRoots", str(SDK / "node_modules" / "@types")]
    await run([str(SDK / "node_modules" / ".bin" / "tsc"), *STRICT, *types, name], folder)


def watched(fleet: Fleet, pids: Path) -> AbstractAsyncContextManager[None]:
    """Restart what dies while the block lasts, and keep the ids of the fleet's processes in a file."""

    def write_pids() -> None:
        found = {process.name: process.pid for process in fleet.processes}
        unfinished = pids.with_suffix(".new")
        unfinished.write_text(json.dumps(found), encoding="utf-8")
        unfinished.replace(pids)

    def on_event(event: FleetEvent) -> None:
        if isinstance(event, ProcessRestarted):
            write_pids()

    write_pids()
    return kept(fleet, on_event)


@pytest.mark.long
async def test_the_typescript_sdk_is_served_through_deaths(tmp_path: Path, new_fleet: NewFleet) -> None:
    pids = tmp_path / "pids.json"
    async with (
        new_fleet(decode=2, routers=2, placement="disaggregated") as fleet,
        watched(fleet, pids),
        AsyncClient(fleet.router_addresses) as client,
    ):
        environment = {"BATON_ADDRESSES": ",".join(fleet.router_addresses), "BATON_PIDS_FILE": str(pids)}
        empty = tmp_path / "project"
        empty.mkdir()
        await run_quick_start(empty, fleet.router_addresses[0])
        # The last file kills processes of the fleet.
        for name in ("streaming", "errors", "deaths"):
            await run_tests(name, environment)
            await until_idle(client)


async def test_a_secured_fleet_serves_a_client_with_its_credentials(
    tmp_path: Path, new_fleet: NewFleet
) -> None:
    async with new_fleet(secure=tmp_path / "secure") as fleet:
        assert fleet.secured is not None
        files = dataclasses.asdict(fleet.secured.credentials)
        files["apiKeyFile"] = files.pop("api_key_file")
        environment = {
            "BATON_ADDRESSES": ",".join(fleet.router_addresses),
            "BATON_CREDENTIALS": json.dumps(files, default=str),
        }
        await run_tests("secured", environment)
