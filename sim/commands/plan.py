"""`plan`: the cheapest fleet that meets the requirements, its margin, and why one worker less fails."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sim.commands.arguments import Load, add_load_flags, add_profile_flag, load_of
from sim.commands.arms import Arm
from sim.commands.run_rows import facts_of, run_row
from sim.commands.search import Found, Search, Tried, judge
from sim.commands.simulate import spec_of, wide_console
from sim.commands.values import POSITIVE, plotted, whole
from sim.metrics import measure
from sim.play.simulation import run
from sim.reporting.simulated import read

NONE_HOLDS = 1


def add_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags of `plan`."""
    command.add_argument("--rate", type=POSITIVE, required=True, metavar="R", help="requests a second")
    command.add_argument(
        "--goodput", type=_share, default=0.99, metavar="X", help="share of requests to be good (0.99)"
    )
    command.add_argument("--policy", default="slack", metavar="NAME", help="the policy (slack)")
    command.add_argument(
        "--max-workers", type=whole(1), default=64, metavar="N", help="the largest fleet to try (64)"
    )
    command.add_argument(
        "--token-budgets", type=_budgets, default=(None,), metavar="N[,N]",
        help="the most tokens of a step; each is tried with every shape (the profile's)",
    )  # fmt: skip
    add_profile_flag(command)
    add_load_flags(command, duration_s=60.0)
    command.add_argument("--seed", type=whole(0), default=0, metavar="N", help="the seed of the workload (0)")
    command.add_argument(
        "--json", type=Path, metavar="FILE", help="write the answer and everything that was tried"
    )
    command.add_argument("--report", type=plotted, metavar="FILE.html", help="write a page with plots")
    command.set_defaults(max_seqs=None, routers=1, noise=1.0)


def _share(text: str) -> float:
    value = POSITIVE(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: a share above 0, at most 1")
    return value


def _budgets(text: str) -> tuple[int, ...]:
    return tuple(whole(1)(part) for part in text.split(","))


def plan(args: argparse.Namespace) -> int:
    """Find a fleet and report it; return 0 if one was found, 1 if no fleet within the limit is enough."""
    load, console = load_of(args), wide_console()
    tried: list[tuple[float, Tried]] = []
    rows: list[dict[str, Any]] = []
    """The rows of a page, if one is wanted."""

    def attempt(arm: Arm, rate: float) -> Tried:
        status.update(f"{len(tried)} tried; now {arm} at {rate:.1f} requests/s")
        result = run(spec_of(args, arm, load.trace(rate, args.seed), args.seed))
        outcome = judge(arm, result)
        tried.append((rate, outcome))
        if args.report is not None:
            rows.append(run_row(arm, rate, args.seed, result, measure(result)))
        return outcome

    budgets, estimate = args.token_budgets, load.capacity_per_s
    search = Search(args.policy, args.goodput, args.max_workers, budgets, estimate, attempt)
    with console.status("searching") as status:
        found = search.cheapest(args.rate)
    _show(console, args, load, found, len(tried))
    if args.json is not None:
        text = json.dumps(_document(args, load, found, tried), indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")
    if args.report is not None:
        _report(args, load, found, rows)
    return 0 if found is not None else NONE_HOLDS


def _report(args: argparse.Namespace, load: Load, found: Found | None, rows: list[dict[str, Any]]) -> None:
    """Write a page with everything that was tried; the answer is first among its facts."""
    from sim.reporting.page import write_page  # noqa: PLC0415  (matplotlib takes a second to load)

    results = read({**facts_of(load, args.noise), "runs": rows})
    answer = f"none of up to {args.max_workers} workers holds"
    if found is not None:
        margin = found.most_rate / args.rate
        good = f"{found.best.good:.1%} good at {args.rate:g} requests/s"
        answer = f"{found.best.candidate}: {good}, margin {margin:.2f} ×"
        if found.cheaper is not None:
            answer += f"; one less fails: {found.cheaper.candidate}, {found.cheaper.why}"
    write_page(replace(results, facts={"cheapest": answer, **results.facts}), args.report)


def _show(console: Console, args: argparse.Namespace, load: Load, found: Found | None, count: int) -> None:
    promises = load.promises
    console.print(
        f"{load.workload}, {load.process}, {args.rate:g} requests/s, TTFT ≤ {promises.ttft_ms} ms, "
        f"TPOT ≤ {promises.tpot_ms} ms; {args.profile.name}, {args.policy}; {count} simulations"
    )
    if found is None:
        console.print(
            f"no fleet of up to {args.max_workers} workers keeps {args.goodput:.0%} of requests good"
        )
        return
    best = found.best
    console.print(
        f"cheapest: {best.candidate.fleet.size} workers, {best.candidate}: {best.good:.1%} good; "
        f"carries up to {found.most_rate:.1f} requests/s, margin {found.most_rate / args.rate:.2f} ×"
    )
    if found.cheaper is not None:
        less = found.cheaper
        size = less.candidate.fleet.size
        console.print(f"one less fails: {size} workers, {less.candidate}: {less.good:.1%} good, {less.why}")


def _document(
    args: argparse.Namespace, load: Load, found: Found | None, tried: list[tuple[float, Tried]]
) -> dict[str, Any]:
    return {
        "profile": args.profile.name,
        "workload": load.workload,
        "rate_per_s": args.rate,
        "goodput": args.goodput,
        "policy": args.policy,
        "promises": asdict(load.promises),
        "found": None
        if found is None
        else {
            "best": _plain(found.best),
            "most_rate_per_s": found.most_rate,
            "cheaper": None if found.cheaper is None else _plain(found.cheaper),
        },
        "tried": [{"rate_per_s": rate} | _plain(candidate) for rate, candidate in tried],
    }


def _plain(candidate: Tried) -> dict[str, Any]:
    return {**asdict(candidate), "candidate": candidate.candidate.as_row()}
