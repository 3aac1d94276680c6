"""Routers that share one Redis, one of which is killed at half time.

    python -m benchmarks many-routers --rate 200 --seconds 60 --scale 0.02 --decode 1 --clients 2

A fleet of timed workers, two routers, and clients in processes of their own that know both. Redis is watched
throughout: no request of a class may be granted before one that was due earlier (but for grants in flight),
no worker's blocks or seats may be leased twice, and in the end nothing may be held. One router is killed at
half time; its clients resume with the other, and no request may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from benchmarks.failures.crowd import Plan
from benchmarks.failures.shared_redis import Report, measure
from benchmarks.flags import add_model_flag, add_shared_flags, number
from benchmarks.telling import Telling
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
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
    """One fleet for each seed."""
    telling = Telling(args)
    asked = {one.name: getattr(args, one.name) for one in fields(Plan) if one.name != "seed"}
    reports = []
    with progress_bars() as progress:
        bar = progress.add_task("many-routers", total=len(args.seeds))
        for seed in args.seeds:
            reports.append(asyncio.run(measure(Plan(**asked, seed=seed))))
            progress.advance(bar)
    telling.add(section(Plan(**asked), args.seeds, reports))
    return telling.end()


def section(plan: Plan, seeds: Sequence[int], reports: Sequence[Report]) -> Section:
    """Goals, and a row for each seed."""
    outcomes = [one.outcome for one in reports]

    def none(claim: str, counts: Iterable[int]) -> Goal:
        return Goal(claim, (float(sum(counts)),), 0, at_least=False, spec=".0f")

    goals = (
        Goal(
            "requests sent a second",
            tuple(one.sent / plan.seconds for one in outcomes),
            0.95 * plan.rate,
            spec=".1f",
        ),
        none("requests not finished", (one.sent - one.finished for one in outcomes)),
        none("answers of a wrong length", (one.wrong_length for one in outcomes)),
        none(
            "grants before one due earlier, beyond those in flight",
            (one.passed_beyond_flight for one in reports),
        ),
        none("workers whose blocks or seats were oversold", (len(one.oversold) for one in reports)),
        none("credits and leases held at the end", (len(one.held_at_the_end) for one in reports)),
    )
    rows = [
        (
            f"seed {seed}",
            f"{one.outcome.sent} / {one.outcome.finished}",
            f"{one.outcome.resumed}",
            f"{quantile(one.outcome.late_ms, 0.99):.0f}",
            f"{quantile(one.outcome.ttft_ms, 0.5):.0f} / {quantile(one.outcome.ttft_ms, 0.99):.0f}",
            f"{one.outcome.tokens / plan.seconds:.0f}",
            f"{one.granted} / {one.most_waiting} / {one.passed}",
            ", ".join(f"{name} {share:.2f}" for name, share in one.cpu_shares.items())
            + f", clients {one.outcome.cpu_s / plan.seconds:.2f}",
            "; ".join(one.violations) or "none",
        )
        for seed, one in zip(seeds, reports, strict=True)
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
    data = {"plan": asdict(plan) | {"model": str(plan.model)}, "reports": [asdict(one) for one in reports]}
    return Section("Many routers", method, goals, (markdown(header, rows),), data)
