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
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import CostState, FleetSnapshot, Role
from benchmarks.failures.streams import EXACT, STRIKE_AT, Wave, play, prompts_of, wave
from benchmarks.flags import add_model_flag, add_shared_flags
from benchmarks.fleets.observe import busiest_decoder, snapshot
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
from reporting.tables import p50_p99
from scheduling.admission.prediction import PrefillView, RequestCost, own_prefill_s, prefill_speed
from scheduling.cost.cost_model import CostModel, StepShape

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )
    add_model_flag(parser)
    add_shared_flags(parser)


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

        async def kill(name: Awaitable[str]) -> None:
            nonlocal killed_at
            process = fleet.process(await name)
            killed_at = time.monotonic()
            process.kill()

        def kill_decoder() -> Awaitable[None]:
            return kill(busiest_decoder(client))

        def kill_router() -> Awaitable[None]:
            return kill(_busiest_router(fleet))

        streams = await play(client, prompts, TOKENS, seed, kill_decoder)
        moved = [stream.attempts > 1 for stream in streams]
        worker = wave(streams, undisturbed, moved, killed_at, math.inf)
        streams = await play(client, prompts, TOKENS, seed, kill_router)
        moved = [stream.resumes > 0 for stream in streams]
        router = wave(streams, undisturbed, moved, killed_at, math.inf)
        return Run(worker, router, predicted_s)


async def _busiest_router(fleet: Fleet) -> str:
    running = {}
    for name in fleet.spec.router_names:
        async with AsyncClient(fleet.process(name).address) as direct:
            running[name] = (await snapshot(direct)).queue.running_sessions
    return max(running, key=lambda name: running[name])


def _predicted_s(seen: FleetSnapshot, num_streams: int) -> float:
    """Predict for one stream at the kill, by the median of such steps: its tokens, then a step of all."""
    prefill = next(
        _model_of(worker.cost) for worker in seen.workers if worker.role is Role.PREFILL and worker.cost
    )
    decode = next(
        _model_of(worker.cost) for worker in seen.workers if worker.role is Role.DECODE and worker.cost
    )
    context = PROMPT_TOKENS + STRIKE_AT
    speed = prefill_speed(PrefillView(prefill, BUDGET))
    again_s = own_prefill_s(RequestCost(context, 0, 0, 1), speed)
    step_s = decode.predict(StepShape.of(num_streams, num_streams * context, ()))
    return prefill.ratio_q50 * again_s + decode.ratio_q50 * step_s


def _model_of(cost: CostState) -> CostModel:
    ratios = (cost.ratio_q10, cost.ratio_q50, cost.ratio_q95)
    return CostModel(cost.coefficients, cost.knee_tokens, *ratios, is_trusted=cost.is_trusted)


def section_of(runs: Sequence[Run]) -> Section:
    """Return goals on the P99 of each fleet, and a row for each."""
    allowed_s = [DETECTION_S + measured.predicted_s for measured in runs]
    shares = [
        quantile(measured.worker.pauses_s, 0.99) / most
        for measured, most in zip(runs, allowed_s, strict=True)
        if measured.worker.pauses_s
    ]
    changed = tuple(float(measured.worker.changed + measured.router.changed) for measured in runs)
    router_s = tuple(
        quantile(measured.router.pauses_s, 0.99) for measured in runs if measured.router.pauses_s
    )
    goals = (
        Goal("streams broken or changed", changed, 0, at_least=False, spec=".0f"),
        Goal("decode worker killed: P99 pause / what is allowed", tuple(shares), 1.0, at_least=False),
        Goal("router killed: P99 pause, s", router_s, ROUTER_GOAL_S, at_least=False),
    )
    rows = [
        (
            f"{number} ({len(measured.worker.pauses_s)} and {len(measured.router.pauses_s)} moved)",
            p50_p99(measured.worker.before_s),
            p50_p99(measured.worker.pauses_s),
            f"{(DETECTION_S + measured.predicted_s) * 1000:.0f} ({measured.predicted_s * 1000:.0f})",
            p50_p99(measured.router.pauses_s),
        )
        for number, measured in enumerate(runs, 1)
    ]
    rows.append(
        (
            "all",
            p50_p99([gap for measured in runs for gap in measured.worker.before_s]),
            p50_p99([gap for measured in runs for gap in measured.worker.pauses_s]),
            "",
            p50_p99([gap for measured in runs for gap in measured.router.pauses_s]),
        )
    )
    header = (
        "fleet",
        "gap before, P50 / P99 ms",
        "worker killed: pause, P50 / P99 ms",
        "allowed (without detection), ms",
        "router killed: pause, P50 / P99 ms",
    )
    method = (
        f"The longest gap of each stream that moved, from the kill on; {PROMPT_TOKENS} prompt tokens, killed "
        f"after {STRIKE_AT} more."
    )
    return Section("A process is killed in mid-stream", method, goals, (markdown(header, rows),))
