"""Run several routers on one Redis: a fleet, many clients, and a watch on every command of Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import Role
from benchmarks.failures.crowd import Outcome, Plan, client_process, processes
from benchmarks.failures.redis_watch import RedisWatch
from benchmarks.fleets.observe import memory_and_cpu, snapshot
from state.store import Store

DRAIN_S = 60.0
START_S = 5.0
"""Seconds until the first request: clients import their modules, and draw their requests."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    outcome: Outcome
    granted: int
    most_waiting: int
    passed: int
    passed_beyond_flight: int
    oversold: tuple[str, ...]
    held_at_the_end: tuple[str, ...]
    cpu_shares: dict[str, float]
    """CPU seconds per second, by process, while requests were sent; for a killed process until then."""

    @property
    def violations(self) -> list[str]:
        """The broken promises of the fleet; empty if all is well."""
        outcome = self.outcome
        found = [f"{name}: oversold" for name in self.oversold]
        found += [f"{key}: still held" for key in self.held_at_the_end]
        found += [f"{count} × {error}" for error, count in outcome.errors.items()]
        if outcome.wrong_length:
            found.append(f"{outcome.wrong_length} answers of a wrong length")
        if outcome.finished != outcome.sent:
            found.append(f"{outcome.sent - outcome.finished} of {outcome.sent} requests not finished")
        if self.passed_beyond_flight:
            found.append(f"{self.passed_beyond_flight} grants before one due earlier in the same class")
        return found


async def measure(plan: Plan, run_dir: Path | None = None) -> Report:
    """Start the fleet, send, kill, wait, and judge."""
    sizes = ("--max-num-seqs", str(plan.max_num_seqs))
    spec = FleetSpec(
        model=plan.model,
        prefill=plan.prefill,
        decode=plan.decode,
        routers=plan.routers,
        timed=plan.profile,
        run_dir=run_dir,
        # No request is refused, so a request that is not finished was lost.
        extra_args={"router": ("--queue-capacity", "100000"), "prefill": sizes, "decode": sizes},
    )
    async with Fleet(spec) as fleet, RedisWatch(fleet.process("redis").address) as watch:
        with processes(plan.clients) as pool:
            return await _measure(plan, fleet, watch, pool)


async def _measure(plan: Plan, fleet: Fleet, watch: RedisWatch, pool: ProcessPoolExecutor) -> Report:
    loop = asyncio.get_running_loop()
    async with AsyncClient(fleet.router_addresses[-1:]) as client:
        workers = (await snapshot(client)).workers
        capacity = {worker.worker_id: worker.num_blocks for worker in workers if worker.role is Role.DECODE}
    begin_at = time.time() + START_S
    before = _cpu_seconds(fleet)
    sending = [
        loop.run_in_executor(pool, client_process, plan, number, fleet.router_addresses, begin_at)
        for number in range(plan.clients)
    ]
    await asyncio.sleep(START_S + plan.seconds / 2)
    middle = _cpu_seconds(fleet)
    if plan.kill:
        fleet.process("router-0").kill()
    await asyncio.sleep(plan.seconds / 2)
    after = _cpu_seconds(fleet)
    outcome = Outcome()
    for found in await asyncio.gather(*sending):
        outcome.add(found)
    held = await _until_nothing_is_held(fleet.process("redis").address, watch.order.ledgers)
    facts = watch.order.facts
    oversold = [
        f"{worker} ({facts.max_leased[worker]} of {blocks} blocks, {facts.max_seats[worker]} seats)"
        for worker, blocks in capacity.items()
        if facts.max_leased[worker] > blocks or facts.max_seats[worker] > plan.max_num_seqs
    ]
    spent = {name: (after.get(name, middle[name]) - used, name in after) for name, used in before.items()}
    return Report(
        outcome=outcome,
        granted=facts.granted,
        most_waiting=facts.most_waiting,
        passed=facts.passed,
        passed_beyond_flight=facts.passed_beyond_flight,
        oversold=tuple(oversold),
        held_at_the_end=tuple(held),
        cpu_shares={
            name: cpu / (plan.seconds if lived else plan.seconds / 2) for name, (cpu, lived) in spent.items()
        },
    )


async def _until_nothing_is_held(redis_address: str, ledgers: set[str]) -> list[str]:
    """Return the keys that still hold something after a while: a dead router's entries must expire first."""
    give_up = time.monotonic() + DRAIN_S
    store = await Store.connect(f"redis://{redis_address}/0")
    try:
        while True:
            left = [key for key in sorted(ledgers) if await _held(store, key)]
            if not left or time.monotonic() >= give_up:
                return left
            await asyncio.sleep(0.2)
    finally:
        await store.close()


async def _held(store: Store, ledger: str) -> dict[str, int]:
    _, kind, worker_key = ledger.split(":", 2)
    return await (store.leases(worker_key) if kind == "leases" else store.credits(worker_key))


def _cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """Return the CPU seconds of every running process, user and system."""
    found = {}
    for process in fleet.processes:
        with contextlib.suppress(FileNotFoundError):
            found[process.name] = memory_and_cpu(process.pid)[1]
    return found
