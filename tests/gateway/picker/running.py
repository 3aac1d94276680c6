"""An endpoint picker, forked like a gateway, and Envoy as users run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

import httpx

from tests.fleet.driving import until
from tests.forked import ForkedProcess
from tests.gateway.running import running_program
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.house.source_tree import ROOT

ENVOY = ROOT / ".venv-envoy" / "bin" / "envoy"
CONFIGS = Path(__file__).parent / "envoy"
"""Configurations of Envoy as inference gateways write them; only ports are filled in."""


@dataclass(frozen=True)
class Picker:
    address: str
    process: ForkedProcess


@dataclass(frozen=True)
class Envoy:
    """A running Envoy; `http` calls it, whatever status it returns."""

    url: str
    http: httpx.AsyncClient


@asynccontextmanager
async def running_picker(
    gateways: Sequence[str], routers: Sequence[str], *flags: str, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Picker]:
    named = [part for gateway in gateways for part in ("--gateway", gateway)]
    named += [part for router in routers for part in ("--router", router)]
    async with running_program("gateway.picker", "--listen", listen, *named, *flags) as (address, _, process):
        yield Picker(address, process)


@asynccontextmanager
async def running_envoy(
    config: str, folder: Path, picker: str, gateways: Sequence[str]
) -> AsyncIterator[Envoy]:
    """Run Envoy with one of `CONFIGS`, in front of two gateways."""
    door, admin = free_port(), free_port()
    ports = [gateway.rpartition(":")[2] for gateway in gateways]
    filled = Template((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8")).substitute(
        door=door,
        admin=admin,
        picker=picker.rpartition(":")[2],
        **{f"gateway_{number}": port for number, port in enumerate(ports)},
    )
    path = folder / f"{config}.yaml"
    path.write_text(filled, encoding="utf-8")
    arguments = ("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(str(ENVOY), *arguments)
    url = f"http://127.0.0.1:{door}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:

            async def listens() -> bool:
                assert process.returncode is None, f"Envoy ended with {process.returncode}"
                try:
                    return (await http.get(f"http://127.0.0.1:{admin}/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(listens, "Envoy listens")
            yield Envoy(url, http)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()
