"""How long streams stand still when a process that serves them is killed: a decode worker, then a router.

    python -m benchmarks recovery --streams 8 --seeds 1,2,3,4,5

A fleet of the demo model for each seed: two routers, one prefill worker, two decode workers. Streams run side
by side. Once each has some tokens, the decode worker with more of them is sent SIGKILL; in a second wave, on
what is left, one of the routers. The pause of a stream is its longest gap from the kill on, until its end.

A stream whose decode worker died may stand still for the time in which the death is noticed (1 s), for its
prompt and its tokens so far to be prefilled again, and for one step: predicted for it alone, by the cost
model that the fleet's own workers told last. A stream whose router died may for 2 s. One that breaks, or
whose tokens are not those of the undisturbed run, fails the measurement.
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
from benchmarks.failures.streams import EXACT, STRIKE_AT, Stream, num_changed, play, prompts_of
from benchmarks.flags import add_model_flag, add_shared_flags
from benchmarks.fleets.observe import busiest_decoder, snapshot
from benchmarks.telling import Telling
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
from scheduling.admission.prediction import PrefillView, RequestCost, own_prefill_s
from scheduling.cost.cost_model import CostModel, StepShape

STREAMS = 8
PROMPT_TOKENS = 400
TOKENS = 600
"""Many more than come while the one to kill is looked for, also on a busy machine."""
BUDGET = 256
DETECTION_S = 1.0
ROUTER_GOAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Wave:
    """One kill. Times in seconds."""

    before_s: tuple[float, ...]
    """All gaps until the kill."""
    pauses_s: tuple[float, ...]
    """Of each stream that went on elsewhere; none where all had ended when the kill came."""
    changed: int
    """Streams whose tokens were not those of the undisturbed run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One fleet's two deaths."""

    worker: Wave
    router: Wave
    predicted_s: float
    """Prompt and tokens prefilled again, and one step, for a stream alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )
    add_model_flag(parser)
    add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.streams < 2:
        raise ValueError(f"--streams is {args.streams}; accepted: 2 or more, one for each router")
    telling, runs = Telling(args), []
    with progress_bars() as progress:
        bar = progress.add_task("recovery", total=len(args.seeds))
        for seed in args.seeds:
            runs.append(asyncio.run(measure(args.model, args.streams, seed)))
            progress.advance(bar)
    telling.add(section_of(runs))
    return telling.end()


async def measure(model: Path, num_streams: int, seed: int) -> Run:
    """One fleet, both deaths."""
    flags = (*EXACT, "--token-budget", str(BUDGET))
    spec = FleetSpec(
        model=model, routers=2, decode=2, extra_args={"prefill": flags, "decode": flags}, standstill_s=180.0
    )
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        prompts = prompts_of(num_streams, PROMPT_TOKENS, seed)
        undisturbed = await play(client, prompts, TOKENS, seed)
        predicted_s = _predicted_s(await snapshot(client), num_streams)
        killed_at = 0.0

        async def kill_decoder() -> None:
            nonlocal killed_at
            process = fleet.process(await busiest_decoder(client))
            killed_at = time.monotonic()
            process.kill()

        async def kill_router() -> None:
            nonlocal killed_at
            process = fleet.process(await _busiest_router(fleet))
            killed_at = time.monotonic()
            process.kill()

        streams = await play(client, prompts, TOKENS, seed, kill_decoder)
        worker = _wave(streams, undisturbed, killed_at, [one.attempts > 1 for one in streams])
        streams = await play(client, prompts, TOKENS, seed, kill_router)
        router = _wave(streams, undisturbed, killed_at, [one.resumes > 0 for one in streams])
        return Run(worker, router, predicted_s)


async def _busiest_router(fleet: Fleet) -> str:
    running = {}
    for name in fleet.spec.router_names:
        async with AsyncClient(fleet.process(name).address) as direct:
            running[name] = (await snapshot(direct)).queue.running_sessions
    return max(running, key=lambda name: running[name])


def _wave(
    streams: Sequence[Stream], undisturbed: Sequence[Stream], killed_at: float, moved: Sequence[bool]
) -> Wave:
    paused = [one for one, has_moved in zip(streams, moved, strict=True) if has_moved]
    return Wave(
        before_s=tuple(gap for one in streams for gap in one.gaps(0.0, killed_at)),
        pauses_s=tuple(max(one.gaps(killed_at, float("inf"))) for one in paused),
        changed=num_changed(streams, undisturbed),
    )


def _predicted_s(seen: FleetSnapshot, num_streams: int) -> float:
    """For one stream at the kill, in the middle of what such steps take: its tokens, then a step of all."""
    prefill = next(_model_of(one.cost) for one in seen.workers if one.role is Role.PREFILL and one.cost)
    decode = next(_model_of(one.cost) for one in seen.workers if one.role is Role.DECODE and one.cost)
    context = PROMPT_TOKENS + STRIKE_AT
    again_s = own_prefill_s(RequestCost(context, 0, 0, 1), PrefillView(prefill, BUDGET))
    step_s = decode.predict(StepShape.of(num_streams, num_streams * context, ()))
    return prefill.ratio_q50 * again_s + decode.ratio_q50 * step_s


def _model_of(cost: CostState) -> CostModel:
    ratios = (cost.ratio_q10, cost.ratio_q50, cost.ratio_q95)
    return CostModel(cost.coefficients, cost.knee_tokens, *ratios, is_trusted=cost.is_trusted)


def section_of(runs: Sequence[Run]) -> Section:
    """P99 of each fleet beside what is allowed, and what was seen in each."""
    allowed_s = [DETECTION_S + one.predicted_s for one in runs]
    shares = [
        quantile(one.worker.pauses_s, 0.99) / most
        for one, most in zip(runs, allowed_s, strict=True)
        if one.worker.pauses_s
    ]
    changed = tuple(float(one.worker.changed + one.router.changed) for one in runs)
    router_s = tuple(quantile(one.router.pauses_s, 0.99) for one in runs if one.router.pauses_s)
    goals = (
        Goal("streams broken or changed", changed, 0, at_least=False, spec=".0f"),
        Goal("decode worker killed: P99 pause / what is allowed", tuple(shares), 1.0, at_least=False),
        Goal("router killed: P99 pause, s", router_s, ROUTER_GOAL_S, at_least=False),
    )
    rows = [
        (
            f"{number} ({len(one.worker.pauses_s)} and {len(one.router.pauses_s)} moved)",
            _pair(one.worker.before_s),
            _pair(one.worker.pauses_s),
            f"{(DETECTION_S + one.predicted_s) * 1000:.0f} ({one.predicted_s * 1000:.0f})",
            _pair(one.router.pauses_s),
        )
        for number, one in enumerate(runs, 1)
    ]
    rows.append(
        (
            "all",
            _pair([gap for one in runs for gap in one.worker.before_s]),
            _pair([gap for one in runs for gap in one.worker.pauses_s]),
            "",
            _pair([gap for one in runs for gap in one.router.pauses_s]),
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


def _pair(taken: Sequence[float]) -> str:
    return f"{quantile(taken, 0.5) * 1000:.0f} / {quantile(taken, 0.99) * 1000:.0f}" if taken else "–"
