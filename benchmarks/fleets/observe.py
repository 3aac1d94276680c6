"""Observe a fleet while it is measured."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from contextlib import aclosing
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from baton import AsyncClient
from baton.snapshots import FleetSnapshot, Role

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


class KVObserver:
    """Samples KV utilisation while the `async with` block lasts."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._samples: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        block_size = (await self._client.describe()).block_size
        async with aclosing(self._client.watch(_SAMPLE_S)) as snapshots:
            async for snapshot in snapshots:
                share = kv_utilisation(snapshot, block_size)
                if share is not None:
                    self._samples.append(share)

    @property
    def mean(self) -> float | None:
        return sum(self._samples) / len(self._samples) if self._samples else None


async def scrape(address: str) -> list[Sample]:
    """Return all samples of a process's Prometheus endpoint."""
    text = await asyncio.to_thread(_fetch, f"http://{address}/metrics")
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def total(samples: list[Sample], name: str) -> float:
    """Return a metric summed over its labels; 0 if it is missing."""
    return sum(float(sample.value) for sample in samples if sample.name == name)


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (an address the user gave)
        content: bytes = answer.read()
    return content.decode()


class RouterCost:
    """CPU time of the routers per relayed token while the `async with` block lasts."""

    def __init__(self, metrics_addresses: tuple[str, ...]) -> None:
        self._addresses = metrics_addresses
        self._before: tuple[float, float] = (0.0, 0.0)
        self._after: tuple[float, float] = (0.0, 0.0)

    async def __aenter__(self) -> Self:
        self._before = await self._read()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._after = await self._read()

    async def _read(self) -> tuple[float, float]:
        samples = await asyncio.gather(*(scrape(address) for address in self._addresses))
        cpu = sum(total(router_samples, "process_cpu_seconds_total") for router_samples in samples)
        if self._addresses and not cpu:
            raise ValueError(
                f"router metrics at {', '.join(self._addresses)} have no process_cpu_seconds_total"
            )
        return cpu, sum(total(router_samples, "baton_relayed_tokens_total") for router_samples in samples)

    @property
    def us_per_token(self) -> float | None:
        cpu, tokens = (after - before for before, after in zip(self._before, self._after, strict=True))
        return cpu / tokens * 1e6 if tokens else None
