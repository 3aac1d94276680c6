"""Finds what is still held when nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from prometheus_client.samples import Sample

from baton import AsyncClient
from baton.fleet import ManagedProcess
from benchmarks.doors.observe import scrape, total
from runtime.state.connection import MAX_CONNECTIONS
from runtime.state.records import LEASE_TTL_S
from runtime.state.store import Store

MORE = {"descriptors": 16 + MAX_CONNECTIONS, "tasks": 12, "threads": 6}
"""Growth that connections may cause: a killed peer is dialled anew; connections to Redis are kept."""
MEMORY_SHARE = 1.05
SCRAPES = 5
PAUSE_S = 0.2
GRACE_S = 10.0
"""Routers keep the session of a client that has gone for this long, and its work."""
LATE_S = 5.0
"""The end of something is seen this long after it, on a machine that starves too."""
HOLDS = ("leases", "credits", "queue entries")
HANG_S = 7.0
"""The longest time for which a router may stand still or be cut off, and can give nothing back."""
WARM_RESTS = 4
"""Looks at a process before its memory must be flat."""

ORPHANED_S = GRACE_S + HANG_S + LEASE_TTL_S + LATE_S


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
            await asyncio.sleep(PAUSE_S)
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


class AtRest:
    """Judges what is still held when nothing runs, each as soon as it should be gone."""

    def __init__(self, now: float) -> None:
        self._gone_by = now + GRACE_S + LATE_S
        """Sessions, and the blocks of their sequences."""
        self._sessions = now
        """When a session was there for the last time."""

    def overdue(self, held: Mapping[str, float], now: float) -> dict[str, float]:
        """Return the part of what is held that should be gone by now."""
        if any(what.startswith("sessions of") for what in held):
            self._sessions = now
        holds_gone_by = self._sessions + LEASE_TTL_S + LATE_S
        return {
            what: amount
            for what, amount in held.items()
            if now > (holds_gone_by if what.split(" of ")[0] in HOLDS else self._gone_by)
        }


class Orphans:
    """Finds holds of requests that ended so long ago that nobody should renew them, while others run."""

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        self._told: set[str] = set()

    def end(self, request_id: str, now: float) -> None:
        """The request's stream is over."""
        self._ended[request_id] = now

    def look(self, holds: Mapping[str, float], lives: Container[str], now: float) -> dict[str, float]:
        """Return the amounts by what is held for too long; each hold is found once.

        `holds` are amounts by "leases of WORKER, KEY" or "credits of WORKER, KEY", the keys being those of
        groups.
        """
        found = {}
        for what, amount in holds.items():
            request_id = unquote(what.rpartition(", ")[2].split("/")[1])
            since = None if request_id in lives else self._ended.get(request_id)
            if since is not None and now > since + ORPHANED_S and what not in self._told:
                self._told.add(what)
                found[what] = amount
        return found


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
    for what, amount in (await _holds(store)).items():
        holder = what.partition(",")[0]
        found[holder] = found.get(holder, 0) + amount
    status = await store.queue_status()
    if status.waiting_tokens:
        found["queue entries of redis"] = status.waiting_tokens
    await store.close()
    return found


async def holds(redis_url: str) -> dict[str, float]:
    """Return the amount of each hold, for `Orphans`. Raises `StoreUnavailable`."""
    store = await Store.connect(redis_url)
    try:
        return await _holds(store)
    finally:
        await store.close()


async def _holds(store: Store) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in await store.list_workers():
        for what, amounts in (
            ("leases", await store.leases(record.key)),
            ("credits", await store.credits(record.key)),
        ):
            found |= {f"{what} of {record.worker_id}, {key}": amount for key, amount in amounts.items()}
    return found
