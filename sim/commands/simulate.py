"""`simulate`: policies side by side on a simulated clock, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from scheduling.placement import Placement
from scheduling.policies import NAMES
from sim.commands.arguments import Load, add_load_flags, add_profile_flag, load_of
from sim.commands.arms import Arm, arms
from sim.commands.false_refusals import FalseRefusals, false_refusals
from sim.commands.run_rows import facts_of, run_row
from sim.commands.values import number, numbers, placement, plotted, whole
from sim.metrics import Metrics, measure
from sim.play.all_cores import on_all_cores
from sim.play.simulation import run
from sim.reporting.quantiles import Quantiles
from sim.reporting.results import StepSample
from sim.reporting.simulated import promises, read
from sim.spec import FleetShape, SimSpec
from sim.workloads.trace import TraceRequest, rate_per_s

WIDTH = 120
"""Width of the table if it goes to a file or a pipe."""
LOAD = 0.8
COLUMNS = (
    "good/s", "good", "refused", "kept", "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99", "busy", "KV",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArmRun:
    """A run of an arm with a seed."""

    arm: Arm
    rate_per_s: float
    seed: int
    metrics: Metrics
    row: dict[str, Any]
    """The run for JSON."""
    steps: tuple[StepSample, ...] = ()
    wall_s: float = 0.0
    false_refusals: FalseRefusals | None = None


def add_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags of `simulate`."""
    command.add_argument(
        "--policy",
        default="slack",
        metavar="NAME[,NAME]",
        help=f"policies to compare, or all: {', '.join(NAMES)} (slack)",
    )
    command.add_argument(
        "--placement", type=placement, metavar="NAME",
        help="aggregated, disaggregated or conditional (every one that fits the policy)",
    )  # fmt: skip
    command.add_argument(
        "--fleet", type=_fleet, default=FleetShape(2, 2), metavar="2p4d",
        help="prefill and decode workers; 6d: six workers that do both (2p2d)",
    )  # fmt: skip
    command.add_argument(
        "--prefill", type=whole(0), metavar="N", help="prefill workers, in place of --fleet's"
    )
    command.add_argument("--decode", type=whole(1), metavar="N", help="decode workers, in place of --fleet's")
    command.add_argument("--routers", type=whole(1), default=1, metavar="N", help="routers (1)")
    command.add_argument(
        "--token-budget",
        type=whole(1),
        metavar="N",
        help="tokens of a step (the profile's; 2048 for chunked)",
    )
    command.add_argument(
        "--max-seqs", type=whole(1), metavar="N", help="the most sequences of a batch (the profile's)"
    )
    rate = command.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=numbers(0), metavar="R[,R]", help="requests a second")
    rate.add_argument(
        "--load", type=numbers(0), metavar="X[,X]",
        help=f"rates as shares of the most that the fleet could carry ({LOAD:g})",
    )  # fmt: skip
    add_profile_flag(command)
    add_load_flags(command, duration_s=120.0, has_traces=True)
    command.add_argument("--seed", type=whole(0), default=0, metavar="N", help="the first seed (0)")
    command.add_argument(
        "--seeds", type=whole(1), default=1, metavar="N", help="the number of seeds, from --seed on (1)"
    )
    command.add_argument(
        "--noise", type=number(0), default=1.0, metavar="X",
        help="how far step times scatter, as a multiple of the profile's scatter; 0: not at all (1)",
    )  # fmt: skip
    command.add_argument(
        "--false-refusals", type=whole(1), metavar="N",
        help="replay N refusals of each run, to see whether admitting them would have been better",
    )  # fmt: skip
    command.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    command.add_argument("--report", type=plotted, metavar="FILE.html", help="write a page with plots")


def _fleet(text: str) -> FleetShape:
    try:
        return FleetShape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def fleet_of(args: argparse.Namespace) -> FleetShape:
    """Return the fleet of --fleet, --prefill and --decode."""
    prefill = args.fleet.prefill if args.prefill is None else args.prefill
    return FleetShape(prefill, args.decode or args.fleet.decode)


def simulate(args: argparse.Namespace) -> int:
    """Run every arm at every rate; return 0."""
    load, fleet = load_of(args), fleet_of(args)
    chosen = arms(args.policy, args.placement, fleet, args.token_budget)
    rates = rates_of(args, load, fleet)
    tasks = list(_tasks(args, load, chosen, rates))
    console = wide_console()
    began = time.perf_counter()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("simulating", total=sum(len(task.spec.trace) for task in tasks))
        runs = _played(tasks, lambda count: progress.advance(bar, count))
    took_s = time.perf_counter() - began
    for rate in rates:
        show(console, args, load, [outcome for outcome in runs if outcome.rate_per_s == rate])
    console.print(f"times in ms; simulated in {took_s:.1f} s")
    told = document(args, load, runs)
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if args.report is not None:
        report(told, runs, args.report)
    return 0


def wide_console() -> Console:
    """Return the console, with a fixed width if it is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    return console


def rates_of(args: argparse.Namespace, load: Load, fleet: FleetShape) -> list[float]:
    """Return the rates from low to high. A recorded trace has a rate of its own."""
    if load.recorded is not None:
        if args.rate or args.load:
            raise ValueError("--rate or --load is given beside --trace; accepted: --speed")
        return [rate_per_s(load.recorded.requests)]
    if args.rate is not None:
        return sorted(set(args.rate))
    most = load.capacity_per_s(fleet, Placement.AGGREGATED)
    if most < 1e-6:
        raise ValueError(
            f"tpot is {load.promises.tpot_ms} ms; accepted: more, no batch of this profile decodes that fast"
        )
    return sorted({share * most for share in args.load or [LOAD]})


@dataclass(frozen=True, slots=True)
class _Task:
    """A run that is to be played, here or in another process."""

    arm: Arm
    rate_per_s: float
    spec: SimSpec
    num_false_refusals: int | None

    def __call__(self, arrived: Callable[[], None]) -> ArmRun:
        began = time.perf_counter()
        result = run(self.spec, arrived)
        wall_s = time.perf_counter() - began
        sample, seed = self.num_false_refusals, self.spec.seed
        false = false_refusals(self.spec, result, sample) if sample else None
        metrics, steps = measure(result), tuple(step for worker in result.workers for step in worker.steps)
        row = run_row(self.arm, self.rate_per_s, seed, result, metrics)
        return ArmRun(self.arm, self.rate_per_s, seed, metrics, row, steps, wall_s, false)


def _tasks(
    args: argparse.Namespace, load: Load, chosen: Sequence[Arm], rates: Sequence[float]
) -> Iterator[_Task]:
    for rate in rates:
        for seed in range(args.seed, args.seed + args.seeds):
            trace = load.trace(rate, seed)
            for arm in chosen:
                # A page shows the steps of one run of each arm.
                is_shown = args.report is not None and seed == args.seed and rate == rates[-1]
                spec = spec_of(args, arm, trace, seed, log_steps=is_shown)
                yield _Task(arm, rate, spec, args.false_refusals)


def _played(tasks: Sequence[_Task], count_arrivals: Callable[[int], None]) -> list[ArmRun]:
    """Return the runs in order: one alone is played here, several are played on all cores."""
    if len(tasks) == 1:
        return [task(lambda: count_arrivals(1)) for task in tasks]
    runs = dict(on_all_cores(enumerate(tasks), count_arrivals))
    return [runs[place] for place in range(len(tasks))]


def report(told: dict[str, Any], runs: Sequence[ArmRun], path: Path) -> None:
    """Write the page, with the steps of the runs that kept them."""
    from sim.reporting.page import write_page  # noqa: PLC0415  (matplotlib takes a second to load)

    results = read(told)
    shown = [replace(outcome, steps=run.steps) for outcome, run in zip(results.runs, runs, strict=True)]
    write_page(replace(results, runs=tuple(shown)), path)


def spec_of(
    args: argparse.Namespace, arm: Arm, trace: tuple[TraceRequest, ...], seed: int, *, log_steps: bool = False
) -> SimSpec:
    """Return the specification of a simulation."""
    return SimSpec(
        profile=args.profile,
        fleet=arm.fleet,
        trace=trace,
        policy=arm.policy,
        placement=arm.placement,
        token_budget=arm.token_budget,
        max_num_seqs=args.max_seqs,
        num_routers=args.routers,
        seed=seed,
        noise=args.noise,
        log_steps=log_steps,
    )


# Output


def show(console: Console, args: argparse.Namespace, load: Load, runs: list[ArmRun]) -> None:
    """Print a row for each arm: means over its seeds."""
    offered = statistics.fmean(outcome.metrics.offered_per_s for outcome in runs)
    source = load.name if load.recorded is not None else f"{load.workload}, {load.process}"
    console.print(
        f"{source}, {offered:.1f} requests/s; promise: {promises(facts_of(load, args.noise))}; "
        f"{args.profile.name}, seeds {args.seed} to {args.seed + args.seeds - 1}",
        soft_wrap=True,
    )
    for note in load.recorded.notes if load.recorded is not None else ():
        console.print(note)
    table = Table(box=None, pad_edge=False)
    table.add_column("policy, placement, fleet", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for arm in dict.fromkeys(outcome.arm for outcome in runs):
        own = [outcome.metrics for outcome in runs if outcome.arm == arm]
        table.add_row(f"{arm.name} {arm.fleet}", *_cells(own))
    console.print(table)
    for outcome in runs:
        if outcome.false_refusals is not None:
            false = outcome.false_refusals
            console.print(
                f"{outcome.arm.name}, seed {outcome.seed}: "
                f"of {false.sampled} refusals replayed {false.share:.1%} "
                f"look false, and of placebos {false.placebo_share:.1%}; "
                f"{false.gain:+.2f} and {false.placebo_gain:+.2f} good requests for each"
            )


def _cells(own: list[Metrics]) -> list[str]:
    return [
        _mean("{:.1f}", [metrics.goodput_per_s for metrics in own]),
        _mean("{:.1%}", [metrics.good_share for metrics in own]),
        _mean("{:.1%}", [metrics.refused / metrics.requests for metrics in own]),
        _mean("{:.1%}", [metrics.kept_share for metrics in own]),
        _ms([metrics.ttft for metrics in own], "p50"),
        _ms([metrics.ttft for metrics in own], "p99"),
        _ms([metrics.tpot for metrics in own], "p50"),
        _ms([metrics.tpot for metrics in own], "p99"),
        _ms([metrics.itl for metrics in own], "p99"),
        _mean("{:.0%}", [metrics.busy_share for metrics in own]),
        _mean("{:.0%}", [metrics.kv_allocated for metrics in own]),
    ]


def _mean(shown: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return shown.format(statistics.fmean(known)) if known else "–"


def _ms(values: list[Quantiles | None], name: str) -> str:
    known = [getattr(value, name) for value in values if value is not None]
    return f"{statistics.fmean(known) * 1000:.1f}" if known else "–"


def document(args: argparse.Namespace, load: Load, runs: Sequence[ArmRun]) -> dict[str, Any]:
    """Return the document of --json."""
    rows = [
        {
            **outcome.row,
            "wall_s": outcome.wall_s,
            "false_refusals": None if outcome.false_refusals is None else asdict(outcome.false_refusals),
        }
        for outcome in runs
    ]
    return {**facts_of(load, args.noise), "runs": rows}
