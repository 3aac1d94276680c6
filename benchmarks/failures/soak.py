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
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.failures.soak_fleet import NUM_BLOCKS, SOAK_WORKLOADS, Report, Setting, measure, rate_of
from benchmarks.flags import add_model_flag, add_shared_flags, number
from benchmarks.report import report
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
from reporting.tables import p50_p99

STANDSTILL_GOAL_MS = 50.0
MEMORY_GOAL = 1.05
"""The most a process may grow: its memory in the last tenth / its memory two thirds into the run."""
LEAST_MINUTES_FOR_MEMORY = 8.0
"""In a shorter run caches still fill, and memory is reported but not judged."""
NUM_COMPILERS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=number, default=10.0, metavar="M", help="how long to load the fleet (10)")
    add(
        "--load", type=number, default=0.8, metavar="L", help="share of the rate that the fleet carries (0.8)"
    )
    add("--rate", type=number, metavar="R", help="requests a second (from --load)")
    add(
        "--num-blocks",
        type=int,
        default=NUM_BLOCKS,
        metavar="N",
        help=f"blocks of each worker ({NUM_BLOCKS})",
    )
    add("--beside", choices=["compilers"], help=f"run {NUM_COMPILERS} compilers meanwhile")
    add("--profile", default="h200-llama-3.1-8b", metavar="NAME", help="workers' profile (h200-llama-3.1-8b)")
    add_model_flag(parser)
    add_shared_flags(parser, seeds=(1, 2, 3))


def run(args: argparse.Namespace) -> int:
    """Start a fleet for each seed."""
    rate = rate_of(args.profile, args.num_blocks)
    asked = args.load * rate.per_s if args.rate is None else args.rate
    setting = Setting(
        model=args.model,
        rate=asked,
        seconds=args.minutes * 60,
        num_blocks=args.num_blocks,
        profile=args.profile,
        num_compilers=NUM_COMPILERS if args.beside else 0,
    )
    why = f"{args.load:g} of {rate}" if args.rate is None else "by --rate"
    reports = [asyncio.run(measure(setting, seed)) for seed in args.seeds]
    return report(args, [section(setting, why, args.seeds, reports)])


def section(setting: Setting, why: str, seeds: Sequence[int], reports: Sequence[Report]) -> Section:
    """Return goals, and a row for each process of each seed."""
    beside = f", beside {reports[0].beside}" if setting.num_compilers else ""
    method = (
        f"2 routers, 1 prefill and 2 decode workers of {setting.num_blocks} blocks timed by "
        f"{setting.profile}, {' and '.join(SOAK_WORKLOADS)} unscaled, {setting.rate:.1f} requests/s together "
        f"({why}) for {setting.seconds / 60:g} min{beside}."
    )
    tables = _requests(setting, seeds, reports), _processes(seeds, reports)
    told = asdict(setting) | {"model": str(setting.model)}
    data = {"setting": told, "reports": [asdict(report) for report in reports]}
    return Section("A soak", method, _goals(setting, reports), tables, data)


def _goals(setting: Setting, reports: Sequence[Report]) -> tuple[Goal, ...]:
    def most(claim: str, figures: Sequence[float], bound: float, spec: str = ".0f") -> Goal:
        # The worst of the seeds: no run may miss it.
        return Goal(claim, (max(figures),), bound, at_least=False, spec=spec)

    found = [process for report in reports for process in report.processes.values()]
    own = [process.own_standstill_ms for process in found]
    goals = [
        most("longest standstill of an event loop while its process computed, ms", own, STANDSTILL_GOAL_MS),
        most("workers given up", [report.num_given_up for report in reports], 0),
        most("requests refused as unavailable", [report.num_unavailable for report in reports], 0),
    ]
    if setting.num_compilers:
        return tuple(goals)
    standstills = [process.standstill_ms for process in found]
    goals += [
        most("requests not finished", [report.num_unfinished for report in reports], 0),
        most("longest standstill of an event loop, ms", standstills, STANDSTILL_GOAL_MS),
    ]
    if setting.seconds >= LEAST_MINUTES_FOR_MEMORY * 60:
        growths = [process.memory_growth for process in found]
        goals.append(most("memory at the end / two thirds into the run", growths, MEMORY_GOAL, ".2f"))
    return tuple(goals)


def _requests(setting: Setting, seeds: Sequence[int], reports: Sequence[Report]) -> str:
    rows = [
        (
            f"seed {seed}, {workload}",
            f"{outcome.sent} / {outcome.finished}",
            p50_p99(outcome.ttft_ms, 1),
            f"{quantile(outcome.late_ms, 0.99):.0f}",
            f"{outcome.resumed}",
            f"{outcome.cpu_s / setting.seconds:.2f}",
            "; ".join(f"{count} × {error}" for error, count in outcome.errors.items()) or "none",
        )
        for seed, report in zip(seeds, reports, strict=True)
        for workload, outcome in report.outcomes.items()
    ]
    header = (
        "", "sent / finished", "TTFT P50 / P99, ms", "sent late P99, ms", "resumed", "client's cores",
        "errors",
    )  # fmt: skip
    return markdown(header, rows)


def _processes(seeds: Sequence[int], reports: Sequence[Report]) -> str:
    rows = [
        (
            f"seed {seed}, {name}",
            f"{process.own_standstill_ms:.0f}",
            f"{process.standstill_ms:.0f}",
            f"{process.num_long}",
            f"{process.memory_mb:.0f}",
            f"{process.memory_growth:.3f}",
            f"{process.cores:.2f}",
        )
        for seed, report in zip(seeds, reports, strict=True)
        for name, process in report.processes.items()
    ]
    header = (
        "", "computing, ms", "longest standstill, ms", "of 50 ms or more", "memory, MB", "grown by the end",
        "cores",
    )  # fmt: skip
    return markdown(header, rows)
