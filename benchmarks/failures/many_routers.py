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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from benchmarks.failures.crowd import Plan
from benchmarks.failures.shared_redis import Report, measure
from benchmarks.flags import add_model_flag, add_shared_flags, number
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
from reporting.tables import p50_p99
from workloads.shapes import WORKLOADS

COUNTS = {
    "prefill": "prefill workers",
    "decode": "decode workers",
    "routers": "routers",
    "clients": "client processes",
    "max_num_seqs": "seats of each worker",
}


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
    add_model_flag(parser)
    add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Start a fleet for each seed."""
    asked = {field.name: getattr(args, field.name) for field in fields(Plan) if field.name != "seed"}
    seeds = tracked(args.seeds, "many-routers")
    reports = [asyncio.run(measure(Plan(**asked, seed=seed))) for seed in seeds]
    return report(args, [section(Plan(**asked), args.seeds, reports)])


def section(plan: Plan, seeds: Sequence[int], reports: Sequence[Report]) -> Section:
    """Return goals, and a row for each seed."""
    outcomes = [report.outcome for report in reports]

    def none(claim: str, counts: Iterable[int]) -> Goal:
        return Goal(claim, (float(sum(counts)),), 0, at_least=False, spec=".0f")

    goals = (
        Goal(
            "requests sent a second",
            tuple(outcome.sent / plan.seconds for outcome in outcomes),
            0.95 * plan.rate,
            spec=".1f",
        ),
        none("requests not finished", (outcome.sent - outcome.finished for outcome in outcomes)),
        none("answers of a wrong length", (outcome.wrong_length for outcome in outcomes)),
        none(
            "grants before one due earlier, beyond those in flight",
            (report.passed_beyond_flight for report in reports),
        ),
        none("workers whose blocks or seats were oversold", (len(report.oversold) for report in reports)),
        none("credits and leases held at the end", (len(report.held_at_the_end) for report in reports)),
    )
    rows = [
        (
            f"seed {seed}",
            f"{report.outcome.sent} / {report.outcome.finished}",
            f"{report.outcome.resumed}",
            f"{quantile(report.outcome.late_ms, 0.99):.0f}",
            p50_p99(report.outcome.ttft_ms, 1),
            f"{report.outcome.tokens / plan.seconds:.0f}",
            f"{report.granted} / {report.most_waiting} / {report.passed}",
            ", ".join(f"{name} {share:.2f}" for name, share in report.cpu_shares.items())
            + f", clients {report.outcome.cpu_s / plan.seconds:.2f}",
            "; ".join(report.violations) or "none",
        )
        for seed, report in zip(seeds, reports, strict=True)
    ]
    header = (
        "", "sent / finished", "resumed", "sent late P99, ms", "TTFT P50 / P99, ms", "tokens/s",
        "grants / most waiting / passed", "cores", "violations",
    )  # fmt: skip
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
    return Section("Many routers", method, goals, (markdown(header, rows),), data)
