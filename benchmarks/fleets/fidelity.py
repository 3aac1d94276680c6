"""Compare simulation with a live fleet: the same requests at the same times, on one worker of both roles.

    python -m benchmarks fidelity --load 0.5 --json fidelity.json
    python -m benchmarks fidelity --timed h200-llama-3.1-8b --rate 2

The fleet serves the same lengths at the same times in each repetition, with other prompts, while its router
records. Each repetition is then simulated twice. With the recorded step times, medians of TTFT and TPOT shall
be within 2 %. With costs fitted to the steps of all repetitions, about which they scatter as they did live,
the median shall be within the range of the live repetitions. A step lasts from report to report, so the
pauses of a host count where they occur. All other overheads are measured from the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from baton.fleet import FleetSpec
from benchmarks.flags import add_model_flag, add_shared_flags, number
from benchmarks.fleets.arms import Arm, Target, started
from benchmarks.fleets.bench import observed, run_times, samples
from benchmarks.fleets.calibration import overheads, profile, worker_facts
from benchmarks.fleets.load import jobs
from benchmarks.fleets.recorded import TimedStep, Window, costs, timed_steps, trace
from benchmarks.fleets.reference import measure_capacity
from benchmarks.report import report
from reporting.progress import progress_bars
from reporting.section import Goal, Section, markdown
from scheduling.cost.cost_fit import fit
from scheduling.cost.cost_model import CostModel
from scheduling.placement import Placement
from sim.result import End, SimResult
from sim.simulation import run as simulate
from sim.spec import FleetShape, SimSpec
from sim.workers.step_times import RecordedStep
from workloads.shapes import WORKLOADS, shapes

WORKER = "decode-0"
WITHIN = 0.02


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--policy", default="slack", metavar="NAME", help="the policy (slack)")
    add("--workload", choices=sorted(WORKLOADS), default="chat", help="the kind of requests (chat)")
    add("--scale", type=float, default=0.2, metavar="X", help="multiplies all lengths (0.2)")
    add("--arrivals", default="poisson", metavar="PROCESS", help="poisson, gamma:CV or onoff (poisson)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=number, metavar="R", help="requests a second")
    rate.add_argument(
        "--load", type=number, default=0.5, metavar="L", help="share of capacity, measured first (0.5)"
    )
    add(
        "--duration-s",
        type=number,
        default=40.0,
        metavar="S",
        help="time over which requests arrive, for each repetition (40)",
    )
    add(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="the seed of lengths and times in every repetition (1)",
    )
    add("--timed", metavar="PROFILE", help="compute nothing; steps last as long as this profile says")
    add_model_flag(parser)
    add_shared_flags(parser)


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
    async with started(Arm(args.policy, "aggregated"), base, recording) as at:
        rate = args.rate
        if rate is None:
            with console.status("measuring what the fleet carries"):
                rate = args.load * await measure_capacity(at, args.workload, args.scale, None)
        times = run_times(args, rate, args.seed)
        console.print(f"{len(times)} requests at {rate:.2f}/s, load {args.load:g}", highlight=False)
        with progress_bars() as progress:
            found = [await _repetition(args, at, times, number, progress) for number in args.seeds]
    return [medians for medians, _ in found], [window for _, window in found], at.max_context_tokens


async def _repetition(
    args: argparse.Namespace, at: Target, times: Sequence[float], number: int, progress: Progress
) -> tuple[Medians, Window]:
    loop = asyncio.get_running_loop()
    work = jobs(at, shapes(args.workload, len(times), args.seed, args.scale), f"fidelity:{number}")
    task = progress.add_task(f"repetition {number}", total=len(work))
    began = loop.time()
    records, _ = await observed(at, work, times, lambda: progress.advance(task))
    window = Window(began, loop.time())
    await asyncio.sleep(1.0)  # the rest of one repetition must not load the next
    ttft, tpot = samples(records)
    return Medians(statistics.median(ttft), statistics.median(tpot)), window


def _simulated(
    args: argparse.Namespace,
    recording: Path,
    live: Sequence[Medians],
    windows: Sequence[Window],
    context: int,
) -> list[Repetition]:
    facts, last = worker_facts(recording)[WORKER], costs(recording)[WORKER]
    steps = [[step for step in timed_steps(recording) if step.at_s in window] for window in windows]
    together = [step for part in steps for step in part]
    everything = profile(facts, _fitted(together) or last, context)
    repetitions: list[Repetition] = []
    for seed, medians, window, own in zip(args.seeds, live, windows, steps, strict=True):
        began, asked = trace(recording, window)
        scattered = SimSpec(
            profile=everything,
            fleet=FleetShape(0, 1),
            trace=asked,
            policy=args.policy,
            placement=Placement.AGGREGATED,
            overheads=overheads(recording, windows),
            step_times={WORKER: tuple(_shuffled(together, window.end - window.start, seed))},
        )
        followed = replace(
            scattered,
            profile=profile(facts, _fitted(own) or last, context),
            overheads=overheads(recording, [window]),
            step_times={WORKER: tuple(_recorded(own, began))},
        )
        found = [_medians(simulate(spec)) for spec in (followed, scattered)]
        repetitions.append(Repetition(seed, medians, *found))
    return repetitions


def _fitted(steps: Sequence[TimedStep]) -> CostModel | None:
    return fit([(step.shape, step.step_s) for step in steps])


def _shuffled(steps: Sequence[TimedStep], span_s: float, seed: int) -> list[RecordedStep]:
    """Return all steps in random order, so that steps scatter about the fit as they did live."""
    rng = random.Random(f"scatter:{seed}")
    return [RecordedStep(rng.uniform(0.0, span_s), step.shape, step.lasted_s) for step in steps]


def _recorded(steps: Sequence[TimedStep], began: float) -> list[RecordedStep]:
    """Return steps by their start, on the clock of their trace."""
    return [RecordedStep(step.at_s - step.step_s - began, step.shape, step.lasted_s) for step in steps]


def _medians(result: SimResult) -> Medians:
    """Return medians without the first tenth of the requests, as for the live run."""
    kept = result.requests[len(result.requests) // 10 :]
    done = [request for request in kept if request.end is End.FINISHED]
    return Medians(
        statistics.median(request.ttft_s for request in done if request.ttft_s is not None),
        statistics.median(request.tpot_s for request in done if request.tpot_s is not None),
    )


def errors(repetitions: Sequence[Repetition]) -> list[tuple[float, float]]:
    """Return the relative errors of the simulation with recorded step times: TTFT, TPOT."""
    return [
        (
            repetition.recorded.ttft_s / repetition.live.ttft_s - 1,
            repetition.recorded.tpot_s / repetition.live.tpot_s - 1,
        )
        for repetition in repetitions
    ]


def outside(repetitions: Sequence[Repetition], name: str) -> float:
    """Return by how much the median simulation with fitted costs is outside the live range; 0 inside it."""
    live: list[float] = [getattr(repetition.live, name) for repetition in repetitions]
    found: float = statistics.median(getattr(repetition.fitted, name) for repetition in repetitions)
    return max(0.0, min(live) / found - 1, found / max(live) - 1)


def section(args: argparse.Namespace, repetitions: Sequence[Repetition]) -> Section:
    """Return goals, and two rows for each repetition."""
    found = errors(repetitions)
    goals = [
        Goal(
            f"{name}, recorded step times: median over the live one, off by",
            tuple(abs(pair[place]) for pair in found), WITHIN, at_least=False, spec=".1%",
        )
        for place, name in enumerate(("TTFT", "TPOT"))
    ]  # fmt: skip
    goals += [
        Goal(
            f"{name}, fitted costs: median outside the range of {len(repetitions)} live runs, by",
            (outside(repetitions, field),), 0.0, at_least=False, spec=".1%",
        )
        for name, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"))
    ]  # fmt: skip
    rows = []
    for repetition, pair in zip(repetitions, found, strict=True):
        for name, field, error in zip(("TTFT", "TPOT"), ("ttft_s", "tpot_s"), pair, strict=True):
            live, recorded, fitted = (
                f"{1000 * getattr(medians, field):.2f}"
                for medians in (repetition.live, repetition.recorded, repetition.fitted)
            )
            rows.append((f"{name}, repetition {repetition.number}", live, recorded, f"{error:+.1%}", fitted))
    method = f"{args.workload} × {args.scale:g}, policy {args.policy}; medians in ms."
    table = markdown(("", "live", "recorded steps", "error", "fitted costs"), rows)
    data = {"repetitions": [asdict(repetition) for repetition in repetitions]}
    return Section("Fidelity: simulated against live", method, tuple(goals), (table,), data)
