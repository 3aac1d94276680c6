"""Compare simulation with a live fleet: the same requests at the same times, on one worker of both roles.

    python -m benchmarks fidelity --load 0.5 --json fidelity.json
    python -m benchmarks fidelity --timed h200-llama-3.1-8b --rate 2

The fleet serves the same lengths at the same times in each repetition, with other prompts, while its router
records. Each repetition is then simulated twice. With the recorded step times, medians of TTFT and TPOT shall
be within 2 %. With costs fitted to the steps of all repetitions, about which they scatter as they did live,
the median shall be within the range of the live repetitions. A step lasts from report to report, so the
pauses of a host count where they occur. So do a router's work on an arrival, its calls to the store and its
commands to the worker, each as long as one that was recorded then. All other overheads are medians. Latencies
end with the report of a token. Writing it to the client is not simulated; how long that takes is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from baton.fleet import FleetSpec
from benchmarks.flags import add_traffic_flags, number
from benchmarks.fleets.bench import observed, run_times, samples
from benchmarks.fleets.calibration import delays, overheads, profile, worker_facts
from benchmarks.fleets.load import jobs
from benchmarks.fleets.recorded import TimedStep, Window, costs, delivered, timed_steps, trace
from benchmarks.fleets.reference import measure_capacity
from benchmarks.fleets.targets import Target, Variant, started
from benchmarks.report import report
from router.core.model.actions import Outcome
from scheduling.cost.cost_fit import fit
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from sim.commands.run_rows import samples as simulated_samples
from sim.delays import RecordedDelay
from sim.play.simulation import run as simulate
from sim.reporting.progress import progress_bars
from sim.reporting.section import Section, at_most, markdown
from sim.spec import FleetShape, SimSpec
from sim.step_times import RecordedStep
from sim.workloads.shapes import shapes

WORKER = "decode-0"
WITHIN = 0.02
FIGURES = {"TTFT": "ttft_s", "TPOT": "tpot_s"}


@dataclass(frozen=True, slots=True)
class Medians:
    """The medians of a run, in seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """A live run and its simulations."""

    number: int
    live: Medians
    recorded: Medians
    """Simulated with recorded step times."""
    fitted: Medians
    """Simulated with fitted costs."""
    written_after_s: float = 0.0
    """From the report of a first token until it was written to the client, between the medians."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--policy", default="slack", metavar="NAME", help="the policy (slack)")
    add_traffic_flags(parser, duration_s=40.0)
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=number, metavar="R", help="requests a second")
    load = "share of capacity, measured first (0.5)"
    rate.add_argument("--load", type=number, default=0.5, metavar="L", help=load)
    same = "the seed of lengths and times in every repetition (1)"
    add("--seed", type=int, default=1, metavar="N", help=same)


def run(args: argparse.Namespace) -> int:
    args.requests = None
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="baton-fidelity-") as folder:
        recording = Path(folder) / "router.jsonl"
        live, windows, context = asyncio.run(_live(args, recording, console))
        with console.status("simulating"):
            repetitions = _simulated(args, recording, live, windows, context)
    return report(args, [section(args, repetitions)])


async def _live(
    args: argparse.Namespace, recording: Path, console: Console
) -> tuple[list[Medians], list[Window], int]:
    extra = {} if args.timed else {"decode": ["--threads", "1"]}
    base = FleetSpec(args.model, prefill=0, timed=args.timed, extra_args=extra)
    async with started(Variant(args.policy, "aggregated"), base, recording) as at:
        rate = args.rate
        if rate is None:
            with console.status("measuring what the fleet carries"):
                rate = args.load * await measure_capacity(at, args.workload, args.scale, None)
        times = run_times(args, rate, args.seed)
        console.print(f"{len(times)} requests at {rate:.2f}/s, load {args.load:g}", highlight=False)
        with progress_bars() as progress:
            repetitions = [await _repetition(args, at, times, number, progress) for number in args.seeds]
    return [result for result, _ in repetitions], [window for _, window in repetitions], at.max_context_tokens


async def _repetition(
    args: argparse.Namespace, at: Target, times: Sequence[float], number: int, progress: Progress
) -> tuple[Medians, Window]:
    loop = asyncio.get_running_loop()
    work = jobs(at, shapes(args.workload, len(times), args.seed, args.scale), f"fidelity:{number}")
    task = progress.add_task(f"repetition {number}", total=len(work))
    start_s = loop.time()
    records, _ = await observed(at, work, times, lambda: progress.advance(task))
    window = Window(start_s, loop.time())
    await asyncio.sleep(1.0)  # the rest of one repetition must not load the next
    return _medians(*samples(records)), window


def _simulated(
    args: argparse.Namespace,
    recording: Path,
    live: Sequence[Medians],
    windows: Sequence[Window],
    context: int,
) -> list[Repetition]:
    facts, last = worker_facts(recording)[WORKER], costs(recording)[WORKER]

    def profile_of(steps: Sequence[TimedStep]) -> Profile:
        return profile(facts, fit([(step.shape, step.step_s) for step in steps]) or last, context)

    steps = [[step for step in timed_steps(recording) if step.at_s in window] for window in windows]
    together = [step for part in steps for step in part]
    everything = profile_of(together)
    repetitions: list[Repetition] = []
    for seed, medians, window, own in zip(args.seeds, live, windows, steps, strict=True):
        start_s, requests = trace(recording, window)
        rng, span_s = random.Random(f"scatter:{seed}"), window.end - window.start
        scattered = SimSpec(
            profile=everything,
            fleet=FleetShape(0, 1),
            trace=requests,
            policy=args.policy,
            placement=Placement.AGGREGATED,
            overheads=overheads(recording, windows),
            # In random order, so that steps and delays scatter as they did live.
            delays=_delays(delays(recording, windows), _at_random(rng, span_s)),
            step_times=_steps((rng.uniform(0.0, span_s), step) for step in together),
        )
        followed = replace(
            scattered,
            profile=profile_of(own),
            overheads=overheads(recording, [window]),
            delays=_delays(delays(recording, [window]), _since(start_s)),
            step_times=_steps((step.at_s - step.step_s - start_s, step) for step in own),
        )
        samples = [simulated_samples(simulate(spec)) for spec in (followed, scattered)]
        reported = _reported(delivered(recording, window))
        after_s = medians.ttft_s - reported.ttft_s
        recorded, fitted = (_medians(*run) for run in samples)
        repetitions.append(Repetition(seed, reported, recorded, fitted, after_s))
    return repetitions


def _steps(steps: Iterable[tuple[float, TimedStep]]) -> dict[str, tuple[RecordedStep, ...]]:
    """Return the worker's steps with the times at which they begin, on the clock of their trace."""
    return {WORKER: tuple(RecordedStep(at_s, step.shape, step.lasted_s) for at_s, step in steps)}


def _delays(
    recorded: Mapping[str, Iterable[RecordedDelay]], clock: Callable[[float], float]
) -> dict[str, tuple[RecordedDelay, ...]]:
    """Return the delays with their times on the clock of a trace."""
    return {
        kind: tuple(replace(delay, at_s=clock(delay.at_s)) for delay in kind_delays)
        for kind, kind_delays in recorded.items()
    }


def _since(start_s: float) -> Callable[[float], float]:
    return lambda at_s: at_s - start_s


def _at_random(rng: random.Random, span_s: float) -> Callable[[float], float]:
    return lambda _: rng.uniform(0.0, span_s)


def _reported(outcomes: Sequence[Outcome]) -> Medians:
    """Return the medians of what the router's core measured, after the first tenth of the requests."""
    later = outcomes[len(outcomes) // 10 :]
    return _medians(
        [outcome.marks.first_token_at - outcome.marks.received_at for outcome in later],
        [outcome.tpot_s for outcome in later if outcome.tpot_s is not None],
    )


def _medians(ttft_s: Sequence[float], tpot_s: Sequence[float]) -> Medians:
    return Medians(statistics.median(ttft_s), statistics.median(tpot_s))


def error(repetition: Repetition, name: str) -> float:
    """Return the relative error of a median of the simulation with recorded step times."""
    simulated: float = getattr(repetition.recorded, name)
    live: float = getattr(repetition.live, name)
    return simulated / live - 1


def outside(repetitions: Sequence[Repetition], name: str) -> float:
    """Return by how much the median simulation with fitted costs is outside the live range; 0 inside it."""
    live: list[float] = [getattr(repetition.live, name) for repetition in repetitions]
    simulated: float = statistics.median(getattr(repetition.fitted, name) for repetition in repetitions)
    return max(0.0, min(live) / simulated - 1, simulated / max(live) - 1)


def section(args: argparse.Namespace, repetitions: Sequence[Repetition]) -> Section:
    """Return goals, and two rows for each repetition."""
    recorded = [
        at_most(
            f"{label}, recorded step times: median over the live one, off by",
            (abs(error(repetition, name)) for repetition in repetitions),
            WITHIN,
            ".1%",
        )
        for label, name in FIGURES.items()
    ]
    fitted = [
        at_most(
            f"{label}, fitted costs: median outside the range of {len(repetitions)} live runs, by",
            [outside(repetitions, name)],
            0.0,
            ".1%",
        )
        for label, name in FIGURES.items()
    ]
    rows = [
        (
            f"{label}, repetition {repetition.number}",
            f"{1000 * getattr(repetition.live, name):.2f}",
            f"{1000 * getattr(repetition.recorded, name):.2f}",
            f"{error(repetition, name):+.1%}",
            f"{1000 * getattr(repetition.fitted, name):.2f}",
        )
        for repetition in repetitions
        for label, name in FIGURES.items()
    ]
    method = f"{args.workload} × {args.scale:g}, policy {args.policy}; medians in ms."
    table = markdown(("", "live", "recorded steps", "error", "fitted costs"), rows)
    after = ", ".join(f"{1000 * repetition.written_after_s:.1f}" for repetition in repetitions)
    note = f"First tokens are written to the client {after} ms after their report."
    data = {"repetitions": [asdict(repetition) for repetition in repetitions]}
    return Section("Fidelity: simulated against live", method, (*recorded, *fitted), (table, note), data)
