"""A gateway as a process of its own, forked by a zygote: `test_starting.py` and `baton up` execute it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from baton import AsyncClient
from baton.fleet import Fleet
from tests.fleets import NewFleet
from tests.forked import ForkedProcess, shared_zygote
from tests.patience import PATIENCE_S
from tests.zygote import Order
from tools.house.source_tree import ROOT


@dataclass(frozen=True)
class Gateway:
    """A running gateway; `http` calls it, whatever status it returns."""

    url: str
    metrics: str
    """The address of its metrics."""
    process: ForkedProcess
    http: httpx.AsyncClient


@dataclass(frozen=True)
class Served:
    """A gateway before a fleet of timed workers, and what looks into the fleet."""

    fleet: Fleet
    sdk: AsyncClient
    gateway: Gateway

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])


@asynccontextmanager
async def running_timed(new_fleet: NewFleet, *flags: str) -> AsyncIterator[Served]:
    async with (
        new_fleet(timed="demo-cpu", prefill=0) as fleet,
        running_gateway(fleet.router_addresses, *flags) as gateway,
        AsyncClient(fleet.router_addresses) as sdk,
    ):
        yield Served(fleet, sdk, gateway)


@asynccontextmanager
async def running_gateway(
    routers: Sequence[str], *flags: str, log: Path | None = None
) -> AsyncIterator[Gateway]:
    named = [part for router in routers for part in ("--router", router)]
    command = ("gateway", "--listen", "127.0.0.1:0", "--connect-s", "2", *named, *flags)
    async with running_program(*command, log=log) as (address, metrics, process):
        url = f"http://{address}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield Gateway(url, metrics, process, http)


@asynccontextmanager
async def running_program(
    module: str, *flags: str, log: Path | None = None
) -> AsyncIterator[tuple[str, str, ForkedProcess]]:
    """Run a program of this package; yield its address, that of its metrics, and its process."""
    order = Order(module, flags, str(ROOT), {})
    with log.open("wb") if log else os.fdopen(2, "wb", closefd=False) as errors:
        process = shared_zygote().fork(order, errors)
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await asyncio.to_thread(process.stdout.readline)
        ready = re.fullmatch(
            rf"READY {module.rpartition('.')[2]} address=(\S+) metrics=(\S+)\n", line.decode()
        )
        assert ready
        yield ready[1], ready[2], process
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(process.wait)
    finally:
        process.close()
