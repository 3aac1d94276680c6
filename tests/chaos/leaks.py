"""Finds what is still held when nothing runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.samples import Sample

from baton import AsyncClient
from baton.fleet import ManagedProcess
from benchmarks.fleets.observe import scrape, total
from state.connection import MAX_CONNECTIONS
from state.store import Store

MORE = {"descriptors": 16 + MAX_CONNECTIONS, "tasks": 12, "threads": 6}
"""Growth that connections may cause: a killed peer is dialled anew; connections to Redis are kept."""
MEMORY_SHARE = 1.05
SCRAPES = 5
WARM_RESTS = 4
"""Looks at a process before its memory must be flat."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The resources of one process at rest."""

    pid: int
    amounts: dict[str, float]


async def gauges(process: ManagedProcess) -> Gauges:
    """Descriptors, threads, memory in bytes, and tasks of its event loop."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    said = dict(line.split(":", 1) for line in status.splitlines())
    amounts = {
        "descriptors": float(sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())),
        "threads": float(said["Threads"]),
        "memory": float(said["VmRSS"].split()[0]) * 1024,
    }
    if process.metrics_address:  # a gateway has none
        amounts["tasks"] = total(await _scraped(process.metrics_address), "baton_event_loop_tasks")
    return Gauges(process.pid, amounts)


async def _scraped(address: str) -> list[Sample]:
    """Again and again: a machine with much else to do is slow to answer. Raises when nobody does."""
    for left in reversed(range(SCRAPES)):
        try:
            return await scrape(address)
        except OSError:
            if not left:
                raise
    raise AssertionError("it has returned or raised")


class Growth:
    """Compares what each process holds at rest with what it held at its first rest."""

    def __init__(self) -> None:
        self._rests: dict[str, list[Gauges]] = {}

    def look(self, name: str, now: Gauges) -> dict[str, float]:
        """Take in a rest; return what grew by more than connections explain, and by how much."""
        rests = self._rests.setdefault(name, [])
        if rests and rests[0].pid != now.pid:
            rests.clear()
        found = self.grown(name, now)
        rests.append(now)
        return found

    def grown(self, name: str, now: Gauges) -> dict[str, float]:
        """Return what `look` would, and forget it: what has just ended may not be gone yet."""
        rests = self._rests.get(name, [])
        if not rests or rests[0].pid != now.pid:
            return {}
        first = rests[0].amounts
        found = {
            what: now.amounts[what] - first[what]
            for what, more in MORE.items()
            if what in first and now.amounts[what] > first[what] + more
        }
        if len(rests) >= WARM_RESTS:
            warm = rests[WARM_RESTS - 1].amounts["memory"]
            if now.amounts["memory"] > warm * MEMORY_SHARE:
                found["memory"] = now.amounts["memory"] - warm
        return {f"{what} of {name}": more for what, more in found.items()}

    def flattest(self) -> dict[str, float]:
        """Memory now divided by memory when warm, of each process that has rested often enough."""
        return {
            name: rests[-1].amounts["memory"] / rests[WARM_RESTS - 1].amounts["memory"]
            for name, rests in self._rests.items()
            if len(rests) > WARM_RESTS
        }


async def held(routers: Iterable[str], redis_url: str) -> dict[str, float]:
    """Blocks, leases, credits and entries that nobody needs any more. Empty when all is free."""
    found: dict[str, float] = {}
    for address in routers:
        async with AsyncClient(address) as direct:
            watch = direct.watch(0.1)
            try:
                snapshot = await anext(watch)
            finally:
                await watch.aclose()
        if snapshot.queue.running_sessions:
            found[f"sessions of {snapshot.router_id}"] = snapshot.queue.running_sessions
        for worker in snapshot.workers:
            if worker.connected and worker.used_blocks + worker.running + worker.waiting:
                found[f"blocks of {worker.worker_id}"] = worker.used_blocks
    store = await Store.connect(redis_url)
    for record in await store.list_workers():
        for what, amounts in (
            ("leases", await store.leases(record.key)),
            ("credits", await store.credits(record.key)),
        ):
            if amounts:
                found[f"{what} of {record.worker_id}"] = sum(amounts.values())
    status = await store.queue_status()
    if status.waiting_tokens:
        found["queue entries of redis"] = status.waiting_tokens
    await store.close()
    return found
