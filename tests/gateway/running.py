"""A gateway as a process of its own, as users run it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from tests.patience import PATIENCE_S
from tools.house.source_tree import ROOT


@dataclass(frozen=True)
class Gateway:
    """A running gateway; `http` calls it, whatever status it returns."""

    url: str
    metrics: str
    """The address of its metrics."""
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient


@asynccontextmanager
async def running_gateway(
    routers: Sequence[str], *flags: str, stderr: int | None = None
) -> AsyncIterator[Gateway]:
    named = [part for router in routers for part in ("--router", router)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway", "--listen", "127.0.0.1:0", "--connect-s", "2", *named, *flags),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            ready = re.fullmatch(
                rb"READY gateway address=(\S+) metrics=(\S+)\n", await process.stdout.readline()
            )
            assert ready
        url = f"http://{ready[1].decode()}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield Gateway(url, ready[2].decode(), process, http)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()
