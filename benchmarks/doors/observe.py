"""Observe a fleet while it is measured."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from baton import AsyncClient
from baton.types.snapshots import FleetSnapshot, Role

_SAMPLE_S = 0.25


def kv_utilisation(snapshot: FleetSnapshot, block_size: int) -> float | None:
    """Return tokens held / slots allocated on the decode workers; None if nothing is allocated."""
    decoders = [worker for worker in snapshot.workers if worker.role is Role.DECODE]
    slots = sum(worker.used_blocks for worker in decoders) * block_size
    return sum(worker.context_tokens for worker in decoders) / slots if slots else None


async def snapshot(client: AsyncClient) -> FleetSnapshot:
    """Return the present state of the fleet."""
    async with aclosing(client.watch(0.1)) as snapshots:
        return await anext(snapshots)


async def busiest_decoder(client: AsyncClient) -> str:
    """Return the decode worker with the most running sequences."""
    workers = (await snapshot(client)).workers
    return max(
        (worker for worker in workers if worker.role is Role.DECODE), key=lambda worker: worker.running
    ).worker_id


def memory_and_cpu(pid: int) -> tuple[float, float]:
    """Return a process's resident bytes, and its CPU seconds, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return float(pages * os.sysconf("SC_PAGE_SIZE")), ticks / os.sysconf("SC_CLK_TCK")


def child_processes(pid: int) -> list[int]:
    """Return the ids of a process's children, in the order in which they began."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


@asynccontextmanager
async def kv_observed(client: AsyncClient) -> AsyncIterator[list[float]]:
    """Collect samples of KV utilisation while the block lasts."""
    samples: list[float] = []

    async def watch() -> None:
        block_size = (await client.describe()).block_size
        async with aclosing(client.watch(_SAMPLE_S)) as snapshots:
            async for snapshot in snapshots:
                share = kv_utilisation(snapshot, block_size)
                if share is not None:
                    samples.append(share)

    watching = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def scrape(address: str, name: str = "") -> list[Sample]:
    """Return the samples of a process's Prometheus endpoint: all, or those of one metric."""
    text = await asyncio.to_thread(_fetch, f"http://{address}/metrics" + (f"?name[]={name}" if name else ""))
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def total(samples: list[Sample], name: str) -> float:
    """Return a metric summed over its labels; 0 if it is missing."""
    return sum(float(sample.value) for sample in samples if sample.name == name)


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (an address the user gave)
        content: bytes = answer.read()
    return content.decode()


async def cpu_and_tokens(addresses: Sequence[str]) -> tuple[float, float]:
    """Return the CPU seconds that routers have used, and the tokens that they have relayed."""
    samples = [sample for address in addresses for sample in await scrape(address)]
    cpu_s = total(samples, "process_cpu_seconds_total")
    if addresses and not cpu_s:
        raise ValueError(f"router metrics at {', '.join(addresses)} have no process_cpu_seconds_total")
    return cpu_s, total(samples, "baton_relayed_tokens_total")
