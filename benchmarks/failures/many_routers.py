"""Measure routers that share one Redis; one of them is killed at half time.

    python -m benchmarks many-routers --rate 200 --seconds 60 --scale 0.02 --decode 1 --clients 2

The fleet has timed workers and two routers, and clients in their own processes know both. Redis is watched
throughout: no request of a class may be granted before one that was due earlier (except for grants in
flight), no worker's blocks or seats may be leased twice, and at the end nothing may be held. One router is
killed at half time; its clients resume with the other, and no request may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import Role
from benchmarks.failures.crowd import Load, Outcome, send
from benchmarks.failures.redis_watch import OrderFacts, OrderWatch, monitored, own_redis
from benchmarks.flags import number
from benchmarks.fleets.observe import memory_and_cpu, snapshot
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Goal, Section, at_most, table
from reporting.tables import p50_p99
from state.store import Store
from workloads.shapes import WORKLOADS

DRAIN_S = 60.0
START_S = 5.0
"""Seconds until the first request: clients import their modules, and draw their requests."""
COUNTS = {
    "prefill": "prefill workers",
    "decode": "decode workers",
    "routers": "routers",
    "clients": "client processes",
    "max_num_seqs": "seats of each worker",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. Lengths are those of `workload` times `scale`; `clients` is a number of processes."""

    model: Path
    rate: float
    seconds: float
    scale: float
    workload: str = "chat"
    prefill: int = 1
    decode: int = 2
    routers: int = 2
    clients: int = 1
    max_num_seqs: int = 512
    profile: str = "h200-llama-3.1-8b"
    kill: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    seed: int
    outcome: Outcome
    order: OrderFacts
    oversold: tuple[str, ...]
    held_at_the_end: tuple[str, ...]
    cpu_shares: dict[str, float]
    """CPU seconds per second, by process and of all clients, while requests were sent; for a killed process
    until then."""

    @property
    def violations(self) -> list[str]:
        """The broken promises of the fleet; empty if all is well."""
        found = [f"{count} × {error}" for error, count in self.outcome.errors.items()]
        found += [f"{name}: oversold" for name in self.oversold]
        found += [f"{name}: still held" for name in self.held_at_the_end]
        return found + [f"{count(self)} {claim}" for claim, count in NEVER.items() if count(self)]


NEVER: dict[str, Callable[[Report], int]] = {
    "requests not finished": lambda report: report.outcome.sent - report.outcome.finished,
    "answers of a wrong length": lambda report: report.outcome.wrong_length,
    "grants before one due earlier, beyond those in flight": lambda report: report.order.passed_beyond_flight,
    "workers whose blocks or seats were oversold": lambda report: len(report.oversold),
    "credits and leases held at the end": lambda report: len(report.held_at_the_end),
}
"""Things that must never happen, with the number of times that they did."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rate", type=number, default=200.0, metavar="R", help="requests a second (200)")
    add("--seconds", type=number, default=60.0, metavar="S", help="time over which requests arrive (60)")
    add("--workload", choices=sorted(WORKLOADS), default="chat", help="the kind of requests (chat)")
    add("--scale", type=number, default=0.1, metavar="X", help="multiplies all lengths (0.1)")
    for name, what in COUNTS.items():
        default = Plan.__dataclass_fields__[name].default
        add(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    add("--profile", default="h200-llama-3.1-8b", metavar="NAME", help="workers' profile (h200-llama-3.1-8b)")
    add("--no-kill", dest="kill", action="store_false", help="kill no router")


def run(args: argparse.Namespace) -> int:
    """Start a fleet for each seed."""
    plan = Plan(**{field.name: getattr(args, field.name) for field in fields(Plan)})
    reports = [asyncio.run(measure(plan, seed)) for seed in tracked(args.seeds, "many-routers")]
    return report(args, [section(plan, reports)])


async def measure(plan: Plan, seed: int = 0, run_dir: Path | None = None) -> Report:
    """Start the fleet, send, kill, wait, and judge."""
    with own_redis() as redis_url:
        return await _measure(plan, redis_url, seed, run_dir)


async def _measure(plan: Plan, redis_url: str, seed: int, run_dir: Path | None) -> Report:
    sizes = ("--max-num-seqs", str(plan.max_num_seqs))
    spec = FleetSpec(
        redis_url=redis_url,
        model=plan.model,
        prefill=plan.prefill,
        decode=plan.decode,
        routers=plan.routers,
        timed=plan.profile,
        run_dir=run_dir,
        # No request is refused, so a request that is not finished was lost.
        extra_args={"router": ("--queue-capacity", "100000"), "prefill": sizes, "decode": sizes},
    )
    watch = OrderWatch()
    async with Fleet(spec) as fleet, monitored(redis_url, watch.take):
        async with AsyncClient(fleet.router_addresses[-1:]) as client:
            workers = (await snapshot(client)).workers
        outcome, cpu_shares = await _send(plan, seed, fleet)
        held = await _until_nothing_is_held(redis_url, watch.ledgers)
    leased, seats = watch.facts.max_leased, watch.facts.max_seats
    oversold = tuple(
        f"{name} ({leased[name]} of {worker.num_blocks} blocks, {seats[name]} seats)"
        for worker in workers
        if worker.role is Role.DECODE
        and (name := worker.worker_id) in leased
        and (leased[name] > worker.num_blocks or seats[name] > plan.max_num_seqs)
    )
    return Report(seed, outcome, watch.facts, oversold, held, cpu_shares)


async def _send(plan: Plan, seed: int, fleet: Fleet) -> tuple[Outcome, dict[str, float]]:
    """Return the outcome of all clients, and the CPU shares."""
    loads = [
        Load(plan.workload, plan.rate / plan.clients, plan.seconds, plan.scale, seed * plan.clients + number)
        for number in range(plan.clients)
    ]
    before = _cpu_seconds(fleet)
    sending = asyncio.create_task(send(loads, fleet.router_addresses, time.time() + START_S))
    await asyncio.sleep(START_S + plan.seconds / 2)
    middle = _cpu_seconds(fleet)
    if plan.kill:
        fleet.process("router-0").kill()
    await asyncio.sleep(plan.seconds / 2)
    after = _cpu_seconds(fleet)
    outcome = Outcome()
    for found in await sending:
        outcome.add(found)
    shares = {
        name: (after[name] - used) / plan.seconds
        if name in after
        else (middle[name] - used) / (plan.seconds / 2)
        for name, used in before.items()
    }
    return outcome, shares | {"clients": outcome.cpu_s / plan.seconds}


async def _until_nothing_is_held(redis_url: str, ledgers: set[str]) -> tuple[str, ...]:
    """Return the ledgers that hold something after a while: a dead router's entries must expire first."""
    give_up = time.monotonic() + DRAIN_S
    store = await Store.connect(redis_url)
    try:
        while True:
            left = tuple([name for name in sorted(ledgers) if await _held(store, name)])
            if not left or time.monotonic() >= give_up:
                return left
            await asyncio.sleep(0.2)
    finally:
        await store.close()


async def _held(store: Store, ledger: str) -> dict[str, int]:
    kind, worker_key = ledger.split(":", 1)
    return await (store.leases(worker_key) if kind == "leases" else store.credits(worker_key))


def _cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """Return the CPU seconds of every running process, user and system."""
    found = {}
    for process in fleet.processes:
        with contextlib.suppress(FileNotFoundError):
            found[process.name] = memory_and_cpu(process.pid)[1]
    return found


def section(plan: Plan, reports: Sequence[Report]) -> Section:
    """Return goals, and a row for each seed."""
    sent_per_s = tuple(report.outcome.sent / plan.seconds for report in reports)
    goals = [Goal("requests sent a second", sent_per_s, 0.95 * plan.rate, spec=".1f")]
    goals += [at_most(claim, [sum(map(count, reports))], 0, ".0f") for claim, count in NEVER.items()]
    rows = table(
        reports,
        {
            "": lambda report: f"seed {report.seed}",
            "sent / finished": lambda report: f"{report.outcome.sent} / {report.outcome.finished}",
            "resumed": lambda report: report.outcome.resumed,
            "sent late P99, ms": lambda report: f"{quantile(report.outcome.late_ms, 0.99):.0f}",
            "TTFT P50 / P99, ms": lambda report: p50_p99(report.outcome.ttft_ms, 1),
            "tokens/s": lambda report: f"{report.outcome.tokens / plan.seconds:.0f}",
            "grants / most waiting / passed": lambda report: (
                f"{report.order.granted} / {report.order.most_waiting} / {report.order.passed}"
            ),
            "cores": lambda report: ", ".join(
                f"{name} {share:.2f}" for name, share in report.cpu_shares.items()
            ),
            "violations": lambda report: "; ".join(report.violations) or "none",
        },
    )
    killed = ", one killed at half time" if plan.kill else ""
    method = (
        f"{plan.routers} routers on one Redis{killed}, {plan.prefill} prefill and {plan.decode} decode "
        f"workers timed by {plan.profile}, {plan.workload} × {plan.scale:g} at {plan.rate:g} requests/s for "
        f"{plan.seconds:g} s, {plan.clients} client processes."
    )
    data = {
        "plan": asdict(plan) | {"model": str(plan.model)},
        "reports": [asdict(report) for report in reports],
    }
    return Section("Many routers", method, tuple(goals), (rows,), data)
