"""Measure how long streams pause when a process that serves them is killed: a decode worker, then a router.

    python -m benchmarks recovery --streams 8 --seeds 1,2,3,4,5

Each seed has a fleet of the demo model: two routers, one prefill worker, two decode workers. Streams run side
by side. Once each has some tokens, the decode worker with more of them gets SIGKILL; in a second wave, on the
rest of the fleet, one of the routers does. The pause of a stream is its longest gap from the kill to its end.

A stream whose decode worker died may pause while the death is noticed (1 s), its prompt and its tokens so far
are prefilled again, and one step runs: predicted for a stream alone, by the cost model that the fleet's
workers published last. A stream whose router died may pause for 2 s. A stream that breaks, or whose tokens
differ from those of the undisturbed run, fails the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import CostState, FleetSnapshot, Role
from benchmarks.failures.streams import EXACT, STRIKE_AT, Wave, joined, play, prompts_of, wave
from benchmarks.fleets.observe import busiest_decoder, snapshot
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Section, at_most, markdown
from reporting.tables import p50_p99
from scheduling.admission.prediction import RequestCost, own_prefill_s
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.speeds import PrefillView, prefill_speed

STREAMS = 8
PROMPT_TOKENS = 400
TOKENS = 600
"""Many more than arrive while the process to kill is chosen, even on a busy machine."""
BUDGET = 256
DETECTION_S = 1.0
ROUTER_GOAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """The two deaths of one fleet."""

    worker: Wave
    router: Wave
    predicted_s: float
    """Seconds to prefill prompt and tokens again, and for one step, for a stream alone."""

    @property
    def allowed_s(self) -> float:
        """The longest pause that the death of its worker may cost a stream."""
        return DETECTION_S + self.predicted_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )


def run(args: argparse.Namespace) -> int:
    if args.streams < 2:
        raise ValueError(f"--streams is {args.streams}; accepted: 2 or more, one for each router")
    seeds = tracked(args.seeds, "recovery")
    runs = [asyncio.run(measure(args.model, args.streams, seed)) for seed in seeds]
    return report(args, [section_of(runs)])


async def measure(model: Path, num_streams: int, seed: int) -> Run:
    """Start a fleet, and kill a worker, then a router."""
    flags = (*EXACT, "--token-budget", str(BUDGET))
    spec = FleetSpec(
        model=model, routers=2, decode=2, extra_args={"prefill": flags, "decode": flags}, standstill_s=180.0
    )
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        prompts = prompts_of(num_streams, PROMPT_TOKENS, seed)
        undisturbed = await play(client, prompts, TOKENS, seed)
        predicted_s = _predicted_s(await snapshot(client), num_streams)
        killed_at = 0.0

        def kill(name: str) -> None:
            nonlocal killed_at
            killed_at = time.monotonic()
            fleet.process(name).kill()

        async def kill_decoder() -> None:
            kill(await busiest_decoder(client))

        async def kill_router() -> None:
            kill(await _busiest_router(fleet))

        streams = await play(client, prompts, TOKENS, seed, kill_decoder)
        worker = wave(streams, undisturbed, [stream for stream in streams if stream.attempts > 1], killed_at)
        streams = await play(client, prompts, TOKENS, seed, kill_router)
        router = wave(streams, undisturbed, [stream for stream in streams if stream.resumes > 0], killed_at)
        return Run(worker, router, predicted_s)


async def _busiest_router(fleet: Fleet) -> str:
    running = {}
    for name in fleet.spec.router_names:
        async with AsyncClient(fleet.process(name).address) as direct:
            running[name] = (await snapshot(direct)).queue.running_sessions
    return max(running, key=lambda name: running[name])


def _predicted_s(seen: FleetSnapshot, num_streams: int) -> float:
    """Predict for one stream at the kill, by the median of such steps: its tokens, then a step of all."""
    prefill, decode = (
        next(_model_of(worker.cost) for worker in seen.workers if worker.role is role and worker.cost)
        for role in (Role.PREFILL, Role.DECODE)
    )
    context = PROMPT_TOKENS + STRIKE_AT
    again_s = own_prefill_s(RequestCost(context, 0, 0, 1), prefill_speed(PrefillView(prefill, BUDGET)))
    step_s = decode.predict(StepShape.of(num_streams, num_streams * context, ()))
    return prefill.ratio_q50 * again_s + decode.ratio_q50 * step_s


def _model_of(cost: CostState) -> CostModel:
    ratios = (cost.ratio_q10, cost.ratio_q50, cost.ratio_q95)
    return CostModel(cost.coefficients, cost.knee_tokens, *ratios, is_trusted=cost.is_trusted)


def section_of(runs: Sequence[Run]) -> Section:
    """Return goals on the P99 of each fleet, and a row for each."""
    shares = [quantile(run.worker.pauses_s, 0.99) / run.allowed_s for run in runs if run.worker.pauses_s]
    router_s = [quantile(run.router.pauses_s, 0.99) for run in runs if run.router.pauses_s]
    goals = (
        at_most(
            "streams broken or changed", (run.worker.changed + run.router.changed for run in runs), 0, ".0f"
        ),
        at_most("decode worker killed: P99 pause / what is allowed", shares, 1.0),
        at_most("router killed: P99 pause, s", router_s, ROUTER_GOAL_S),
    )
    header = (
        "fleet",
        "gap before, P50 / P99 ms",
        "worker killed: pause, P50 / P99 ms",
        "allowed (without detection), ms",
        "router killed: pause, P50 / P99 ms",
    )
    rows = [
        _row(
            f"{number} ({len(run.worker.pauses_s)} and {len(run.router.pauses_s)} moved)",
            run.worker,
            f"{run.allowed_s * 1000:.0f} ({run.predicted_s * 1000:.0f})",
            run.router,
        )
        for number, run in enumerate(runs, 1)
    ]
    rows.append(_row("all", joined(run.worker for run in runs), "", joined(run.router for run in runs)))
    method = (
        f"The longest gap of each stream that moved, from the kill on; {PROMPT_TOKENS} prompt tokens, killed "
        f"after {STRIKE_AT} more."
    )
    return Section("A process is killed in mid-stream", method, goals, (markdown(header, rows),))


def _row(label: str, worker: Wave, allowed: str, router: Wave) -> tuple[str, ...]:
    return label, p50_p99(worker.before_s), p50_p99(worker.pauses_s), allowed, p50_p99(router.pauses_s)
