"""Load a fleet of the size of real cards for minutes, to find what grows until a process stalls.

    python -m benchmarks soak --minutes 10 --seeds 1
    python -m benchmarks soak --minutes 10 --seeds 1 --beside compilers

Two routers, one prefill worker and two decode workers run, timed by a profile, with 60 000 KV blocks each.
One client process sends `chat` and one `shared`, unscaled, through the SDK. The load is a share of the lower
of two rates: the rate that the workers carry at 20 ms a token by the simulator's arithmetic, and the rate at
which this machine's cores run routers, workers and clients together. The section says which of them it was.

Each process reports its memory, and the longest standstill of its event loop: in all, and while the process
itself computed. Beside compilers, every process waits for a core now and then; so only standstills in which
the process computed count, and requests may end late or be refused for load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.samples import Sample

from baton.fleet import Fleet, FleetSpec, ManagedProcess
from benchmarks.crowds.compilers import compilers
from benchmarks.crowds.crowd import Load, Outcome, send
from benchmarks.doors.observe import memory_and_cpu, scrape
from benchmarks.flags import number
from benchmarks.report import report
from runtime.profiles import load_profile
from scheduling.placement import Placement
from sim.commands.capacity import capacity_per_s
from sim.reporting.quantiles import quantile
from sim.reporting.section import Goal, Section, at_most, markdown
from sim.reporting.tables import p50_p99
from sim.spec import FleetShape
from sim.workloads.shapes import shapes

STANDSTILL_GOAL_MS = 50.0
MEMORY_GOAL = 1.05
"""The most a process may grow: its memory in the last tenth / its memory two thirds into the run."""
LEAST_MINUTES_FOR_MEMORY = 8.0
"""In a shorter run caches still fill, and memory is reported but not judged."""
NUM_COMPILERS = 2
NUM_CORES = len(os.sched_getaffinity(0))
SOAK_WORKLOADS = ("chat", "shared")
NUM_BLOCKS = 60_000
SHAPE = FleetShape(prefill=1, decode=2)
PACE_S = 0.02
CPU_S_PER_REQUEST = 0.17
"""CPU seconds of routers, workers, Redis and clients together, for an unscaled request of `chat` or
`shared`."""
LOOK_S = 5.0
START_S = 5.0
DRAW_S = 0.006
"""Seconds to draw each request, before the first is sent."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second: the rate that the workers carry, and the rate that the machine carries."""

    planned_per_s: float
    machine_per_s: float

    @property
    def per_s(self) -> float:
        return min(self.planned_per_s, self.machine_per_s)

    def __str__(self) -> str:
        planned = f"{self.planned_per_s:.1f}/s that the workers carry"
        machine = f"{self.machine_per_s:.1f}/s that {NUM_CORES} cores carry"
        is_machine = self.machine_per_s < self.planned_per_s
        return f"the {machine}, less than the {planned}" if is_machine else f"the {planned}"


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a soak; `rate` counts all clients together."""

    model: Path
    rate: float
    seconds: float
    num_blocks: int = NUM_BLOCKS
    profile: str = "h200-llama-3.1-8b"
    num_compilers: int = 0
    scale: float = 1.0


@dataclass(slots=True)
class ProcessReport:
    """One process of the fleet, from the first request to the last answer."""

    standstill_ms: float = 0.0
    """The longest standstill of its event loop; 0 for Redis, which does not measure it."""
    own_standstill_ms: float = 0.0
    """The longest standstill in which it computed itself, and did not wait for a core."""
    num_long: int = 0
    """Standstills of 50 ms or more."""
    num_given_up: int = 0
    """Workers that this router gave up."""
    memory_mb: float = 0.0
    memory_growth: float = 1.0
    """Memory in the last tenth of the load / two thirds into it."""
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a soak."""

    seed: int
    outcomes: dict[str, Outcome]
    """By workload."""
    processes: dict[str, ProcessReport]
    beside: str = ""

    @property
    def num_given_up(self) -> int:
        """Workers that a router gave up."""
        return sum(process.num_given_up for process in self.processes.values())

    @property
    def num_unfinished(self) -> int:
        return sum(
            outcome.sent - outcome.finished + outcome.wrong_length for outcome in self.outcomes.values()
        )

    @property
    def num_unavailable(self) -> int:
        errors = (pair for outcome in self.outcomes.values() for pair in outcome.errors.items())
        return sum(count for error, count in errors if error.startswith("Unavailable"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=number, default=10.0, metavar="M", help="how long to load the fleet (10)")
    add(
        "--load", type=number, default=0.8, metavar="L", help="share of the rate that the fleet carries (0.8)"
    )
    add("--rate", type=number, metavar="R", help="requests a second (from --load)")
    blocks = f"blocks of each worker ({NUM_BLOCKS})"
    add("--num-blocks", type=int, default=NUM_BLOCKS, metavar="N", help=blocks)
    add("--beside", choices=["compilers"], help=f"run {NUM_COMPILERS} compilers meanwhile")
    add("--profile", default="h200-llama-3.1-8b", metavar="NAME", help="workers' profile (h200-llama-3.1-8b)")


def run(args: argparse.Namespace) -> int:
    """Start a fleet for each seed."""
    rate = rate_of(args.profile, args.num_blocks)
    rate_per_s = args.load * rate.per_s if args.rate is None else args.rate
    setting = Setting(
        model=args.model,
        rate=rate_per_s,
        seconds=args.minutes * 60,
        num_blocks=args.num_blocks,
        profile=args.profile,
        num_compilers=NUM_COMPILERS if args.beside else 0,
    )
    why = f"{args.load:g} of {rate}" if args.rate is None else "by --rate"
    reports = [asyncio.run(measure(setting, seed)) for seed in args.seeds]
    return report(args, [section(setting, why, reports)])


def rate_of(profile: str, num_blocks: int) -> Rate:
    """Return the rates that workers and machine carry."""
    worker = replace(load_profile(profile), num_blocks=num_blocks)
    planned = [
        capacity_per_s(worker, SHAPE, Placement.CONDITIONAL, shapes(workload, 2000, 0, 1.0), PACE_S)
        for workload in SOAK_WORKLOADS
    ]
    return Rate(statistics.fmean(planned), NUM_CORES / CPU_S_PER_REQUEST)


async def measure(setting: Setting, seed: int, run_dir: Path | None = None) -> Report:
    """Start the fleet, send, observe, and judge."""
    blocks = ("--num-blocks", str(setting.num_blocks))
    spec = FleetSpec(
        model=setting.model,
        prefill=SHAPE.prefill,
        decode=SHAPE.decode,
        routers=2,
        timed=setting.profile,
        run_dir=run_dir,
        standstill_s=180.0,
        extra_args={"prefill": blocks, "decode": blocks},
    )
    rate = setting.rate / len(SOAK_WORKLOADS)
    loads = [Load(workload, rate, setting.seconds, setting.scale, seed) for workload in SOAK_WORKLOADS]
    async with Fleet(spec) as fleet:
        with compilers(setting.num_compilers) as beside:
            begin_at = time.time() + START_S + DRAW_S * setting.rate * setting.seconds
            sending = asyncio.create_task(send(loads, fleet.router_addresses, begin_at))
            looks = await _looks(fleet.processes, begin_at, sending)
        outcomes = dict(zip(SOAK_WORKLOADS, await sending, strict=True))
    processes = {name: _judged(process_looks, setting.seconds) for name, process_looks in looks.items()}
    return Report(seed, outcomes, processes, beside)


@dataclass(slots=True)
class _Look:
    """One process at one moment."""

    at_s: float
    """Seconds since the load began."""
    memory: float
    cpu_s: float
    samples: list[Sample]

    def value(self, name: str, **labels: str) -> float:
        """Return a metric; 0 if it is missing."""
        values = (sample.value for sample in self.samples if sample.name == name and sample.labels == labels)
        return float(next(values, 0.0))


async def _looks(
    fleet: Sequence[ManagedProcess], begin_at: float, sending: asyncio.Future[Any]
) -> dict[str, list[_Look]]:
    """Look at every process every few seconds, from `begin_at` on and once more when all is sent."""
    looks: dict[str, list[_Look]] = {process.name: [] for process in fleet}
    await asyncio.sleep(begin_at - time.time())
    while True:
        is_last = sending.done()
        for process in fleet:
            samples = await scrape(process.metrics_address) if process.metrics_address else []
            look = _Look(time.time() - begin_at, *memory_and_cpu(process.pid), samples)
            looks[process.name].append(look)
        if is_last:
            return looks
        await asyncio.wait([sending], timeout=LOOK_S)


def _judged(looks: Sequence[_Look], seconds: float) -> ProcessReport:
    first, last = looks[0], looks[-1]
    during = [look for look in looks if look.at_s <= seconds]
    settled = _median_memory(during, 0.6 * seconds, 0.7 * seconds)

    def more(name: str) -> int:
        return round(last.value(name) - first.value(name))

    return ProcessReport(
        standstill_ms=1000 * last.value("baton_event_loop_standstill_seconds", since="start"),
        own_standstill_ms=1000 * last.value("baton_event_loop_own_standstill_seconds", since="start"),
        num_long=more("baton_event_loop_long_standstills_total"),
        num_given_up=more("baton_lost_workers_total"),
        memory_mb=last.memory / 1e6,
        memory_growth=_median_memory(during, 0.9 * seconds, seconds) / settled,
        cores=(last.cpu_s - first.cpu_s) / (last.at_s - first.at_s),
    )


def _median_memory(looks: Sequence[_Look], begin_s: float, end_s: float) -> float:
    """Return the median over the looks in that time, or the last look before its end if there was none."""
    sizes = [look.memory for look in looks if begin_s <= look.at_s <= end_s]
    return statistics.median(sizes or [[look.memory for look in looks if look.at_s <= end_s][-1]])


def section(setting: Setting, why: str, reports: Sequence[Report]) -> Section:
    """Return goals, and a row for each process of each seed."""
    beside = f", beside {reports[0].beside}" if setting.num_compilers else ""
    method = (
        f"2 routers, 1 prefill and 2 decode workers of {setting.num_blocks} blocks timed by "
        f"{setting.profile}, {' and '.join(SOAK_WORKLOADS)} unscaled, {setting.rate:.1f} requests/s together "
        f"({why}) for {setting.seconds / 60:g} min{beside}."
    )
    tables = _requests(setting, reports), _processes(reports)
    facts = asdict(setting) | {"model": str(setting.model)}
    data = {"setting": facts, "reports": [asdict(report) for report in reports]}
    return Section("A soak", method, _goals(setting, reports), tables, data)


def _goals(setting: Setting, reports: Sequence[Report]) -> tuple[Goal, ...]:
    def most(claim: str, figures: Sequence[float], bound: float, spec: str = ".0f") -> Goal:
        # The worst of the seeds: no run may miss it.
        return at_most(claim, [max(figures)], bound, spec)

    processes = [process for report in reports for process in report.processes.values()]
    own = [process.own_standstill_ms for process in processes]
    goals = [
        most("longest standstill of an event loop while its process computed, ms", own, STANDSTILL_GOAL_MS),
        most("workers given up", [report.num_given_up for report in reports], 0),
        most("requests refused as unavailable", [report.num_unavailable for report in reports], 0),
    ]
    if setting.num_compilers:
        return tuple(goals)
    standstills = [process.standstill_ms for process in processes]
    goals += [
        most("requests not finished", [report.num_unfinished for report in reports], 0),
        most("longest standstill of an event loop, ms", standstills, STANDSTILL_GOAL_MS),
    ]
    if setting.seconds >= LEAST_MINUTES_FOR_MEMORY * 60:
        growths = [process.memory_growth for process in processes]
        goals.append(most("memory at the end / two thirds into the run", growths, MEMORY_GOAL, ".2f"))
    return tuple(goals)


def _requests(setting: Setting, reports: Sequence[Report]) -> str:
    header = (
        "", "sent / finished", "TTFT P50 / P99, ms", "sent late P99, ms", "resumed", "client's cores",
        "errors",
    )  # fmt: skip
    rows = [
        (
            f"seed {report.seed}, {workload}",
            f"{outcome.sent} / {outcome.finished}",
            p50_p99(outcome.ttft_ms, 1),
            f"{quantile(outcome.late_ms, 0.99):.0f}",
            f"{outcome.resumed}",
            f"{outcome.cpu_s / setting.seconds:.2f}",
            "; ".join(f"{count} × {error}" for error, count in outcome.errors.items()) or "none",
        )
        for report in reports
        for workload, outcome in report.outcomes.items()
    ]
    return markdown(header, rows)


def _processes(reports: Sequence[Report]) -> str:
    header = (
        "", "computing, ms", "longest standstill, ms", "of 50 ms or more", "memory, MB", "grown by the end",
        "cores",
    )  # fmt: skip
    rows = [
        (
            f"seed {report.seed}, {name}",
            f"{process.own_standstill_ms:.0f}",
            f"{process.standstill_ms:.0f}",
            f"{process.num_long}",
            f"{process.memory_mb:.0f}",
            f"{process.memory_growth:.3f}",
            f"{process.cores:.2f}",
        )
        for report in reports
        for name, process in report.processes.items()
    ]
    return markdown(header, rows)
