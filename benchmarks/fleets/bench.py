"""Measures fleets by gRPC or HTTP: a workload at a rate, open loop, under several policies side by side.

    baton bench --workload chat --scale 0.2 --load 0.6,0.9 --policy slack,chunked --report bench.html
    baton bench --door grpc,openai --load 0.6
    baton bench --address 127.0.0.1:50051 --workload burst --scale 0.25 --rate 8 --duration-s 20
    baton bench --trace conversation.jsonl.gz --for 300 --scale 0.02 --ttft-ms 2000 --policy slack,chunked

Every policy, placement and door gets a fleet of its own, of the same size, and all get the same requests at
the same times: seed by seed, beginning with another one each time, so that what drifts hits all alike.
Promises, if --ttft-x or --tpot-x asks for them, are ratios of what the first fleet does without load,
measured before the runs; a load is a share of what it completes when it is kept full. Ratios are against
the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from baton import Credentials, Slo
from baton.cli.target import choose, found_in
from baton.fleet import FleetSpec
from baton.fleet.rundir import runs_of
from baton.security.credentials import UNENCRYPTED
from benchmarks.doors.arms import by_turns
from benchmarks.doors.metrics import RequestRecord, summarise
from benchmarks.doors.observe import cpu_and_tokens, kv_observed
from benchmarks.doors.sending import DOORS, NO_PROMISE, OPENAI, Job
from benchmarks.flags import add_traffic_flags, names, numbers
from benchmarks.fleets.load import jobs, open_loop, recorded_jobs
from benchmarks.fleets.recorded import record_folder, with_steps, write_traces
from benchmarks.fleets.reference import UNLOADED_REQUESTS, measure_capacity, measure_references
from benchmarks.fleets.targets import Target, reached, started, variants
from sim.commands.recorded import Recorded, read_trace
from sim.commands.values import plotted
from sim.reporting.machine import machine
from sim.reporting.progress import progress_bars
from sim.reporting.results import Results, Run, Summary, write
from sim.reporting.simulated import trace_facts
from sim.reporting.tables import print_results
from sim.workload import Promises
from sim.workloads.shapes import RequestShape, arrivals, shapes
from sim.workloads.slo import TPOT_RATIOS, TTFT_RATIOS
from sim.workloads.trace import rate_per_s

BURST_REQUESTS = 64
CHECKOUT = Path(__file__).parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--address", action="append", metavar="HOST:PORT", help="a router of a running fleet; repeatable")
    newest = "measure the newest running fleet of this checkout, or the one of this folder"
    add("--running", type=Path, nargs="?", const=runs_of(CHECKOUT), metavar="RUN_DIR", help=newest)
    metrics = "a router's metrics, for its CPU time per token; repeatable"
    add("--router-metrics", action="append", default=[], metavar="HOST:PORT", help=metrics)
    add("--prefill", type=int, default=1, metavar="N", help="prefill workers of each fleet (1)")
    add("--decode", type=int, default=1, metavar="N", help="decode workers of each fleet (1)")
    policies = "policies, each on a fleet of its own (slack)"
    add("--policy", type=names, default=[], metavar="A,B", help=policies)
    placements = "placements to compare, each on its own fleet (the policy's)"
    add("--placement", type=names, default=[], metavar="A,B", help=placements)
    doors = "doors that requests take, each compared: grpc, or openai, which is a gateway's (grpc)"
    add("--door", type=names, default=[], metavar="A,B", help=doors)
    add("--gateway", metavar="URL", help="a gateway of the fleet of --address, for --door openai")
    add_traffic_flags(parser, duration_s=30.0, has_traces=True)
    add("--cap", type=int, metavar="TOKENS", help="redraw lengths above this, before scaling")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=numbers, metavar="R,R", help="requests a second")
    rate.add_argument("--load", type=numbers, metavar="L,L", help="share of capacity, measured first (0.6)")
    add("--requests", type=int, metavar="N", help=f"the most requests of a run ({BURST_REQUESTS} for burst)")
    ttft = f"TTFT as a multiple of prefill without load, such as {_listed(TTFT_RATIOS)} (no promise)"
    add("--ttft-x", type=float, metavar="X", help=ttft)
    tpot = f"TPOT as a multiple of a decode step, such as {_listed(TPOT_RATIOS)} (no promise)"
    add("--tpot-x", type=float, metavar="X", help=tpot)
    add("--ttft-ms", type=int, metavar="MS", help="TTFT, absolute")
    add("--tpot-ms", type=int, metavar="MS", help="TPOT, absolute")
    add("--itl-ms", type=int, metavar="MS", help="promise for each gap between tokens (none)")
    add("--record", type=Path, metavar="DIR", help="write event logs to replay and traces to simulate there")
    add("--report", type=plotted, metavar="FILE.html", help="write a page with plots")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all arms share."""

    rates: Sequence[float]
    promise: Slo
    facts: dict[str, str]
    recorded: Recorded | None = None
    """The requests, with their promises, if they are those of a trace."""


async def bench(args: argparse.Namespace) -> int:
    """Measure; the exit code is 1 if a request failed."""
    _check(args)
    recorded = read_trace(args) if args.trace is not None else None
    credentials = _find_running(args)
    console = Console()
    with record_folder(args) as folder:
        async with _targets(args, credentials, folder, console) as targets:
            setting = await _settle(args, recorded, targets[0], console)
            results = await _measure(args, targets, setting)
        # A recording is whole only once its router has left.
        recordings = {at.name: at.recording for at in targets if at.recording}
        results = with_steps(results, recordings)
        if args.record:
            write_traces(recordings, min(run.began_s for run in results.runs))
    print_results(console, results)
    if args.json:
        write(results, args.json)
    if args.report:
        from sim.reporting.page import write_page  # noqa: PLC0415  (matplotlib takes a second to load)

        write_page(results, args.report)
    return 1 if any(run.summary.failed for run in results.runs) else 0


def _find_running(args: argparse.Namespace) -> Credentials:
    """Replace `--address` by the addresses of the fleet that `--running` asks for."""
    if args.running is None:
        return UNENCRYPTED
    fleet = choose(found_in(args.running))
    args.address = list(fleet.addresses)
    if OPENAI in args.door:
        if not fleet.gateways:
            raise ValueError("--door is openai, and the running fleet has no gateway; accepted: grpc")
        args.gateway = fleet.gateways[0]
    return fleet.credentials


def _check(args: argparse.Namespace) -> None:
    if args.address and args.running:
        raise ValueError("--address and --running name a running fleet; accepted: one of them")
    if (args.address or args.running) and (args.policy or args.placement or args.record or args.timed):
        flag = "--address" if args.address else "--running"
        raise ValueError(
            f"{flag} names a running fleet; --policy, --placement, --timed and --record start fleets"
        )
    if set(args.door) - set(DOORS):
        raise ValueError(f"--door is {','.join(args.door)}; accepted: {', '.join(DOORS)}, or both")
    if bool(args.gateway) != bool(args.address and OPENAI in args.door):
        raise ValueError("--gateway names a gateway of the fleet of --address, whose --door is openai")
    if args.trace is not None and (args.rate or args.load or args.cap or args.requests):
        raise ValueError(
            "--trace says how many requests come when, and how long they are; "
            "accepted instead of --rate, --load, --cap and --requests: --speed, --from, --for and --scale"
        )
    for ratio, absolute in (("ttft_x", "ttft_ms"), ("tpot_x", "tpot_ms")):
        if getattr(args, ratio) is not None and getattr(args, absolute) is not None:
            flags = f"--{ratio} and --{absolute}".replace("_", "-")
            raise ValueError(f"{flags} state the same promise; accepted: one of them")
    for value in (*(args.rate or ()), *(args.load or ())):
        arrivals(args.arrivals, value, 0)


@contextlib.asynccontextmanager
async def _targets(
    args: argparse.Namespace, credentials: Credentials, folder: Path | None, console: Console
) -> AsyncIterator[list[Target]]:
    """Connect to the running fleet, or start one for every arm, one after the other, since a start measures
    costs.
    """
    async with contextlib.AsyncExitStack() as stack:
        targets: list[Target] = []
        if args.address:
            for variant in variants((), (), args.door):
                gateway = args.gateway if variant.door == OPENAI else None
                name = variant.door or "running fleet"
                running = reached(args.address, name, args.router_metrics, gateway, credentials=credentials)
                targets.append(await stack.enter_async_context(running))
            yield targets
            return
        base = FleetSpec(args.model, args.prefill, args.decode, timed=args.timed)
        for variant in variants(args.policy, args.placement, args.door):
            record = folder / f"{variant.name.replace('/', '-')}.jsonl" if folder else None
            with console.status(f"starting a fleet for {variant.name}"):
                targets.append(await stack.enter_async_context(started(variant, base, record)))
        yield targets


async def _settle(
    args: argparse.Namespace, recorded: Recorded | None, first: Target, console: Console
) -> Setting:
    """Measure the units of promises and loads, if any are given as ratios."""
    if recorded is not None:
        recorded = recorded.fitting(first.max_context_tokens)
    facts, ttft_ms, tpot_ms = _facts(args, recorded), args.ttft_ms, args.tpot_ms
    if args.ttft_x is not None or args.tpot_x is not None:
        with console.status(f"measuring {first.name} without load"):
            unloaded = await measure_references(first, _sample(args, recorded), args.scale)
        facts["unloaded"] = (
            f"prefill {unloaded.prefill_s * 1000:.1f} ms, D {unloaded.decode_step_s * 1000:.2f} ms"
        )
        ttft_ms = ttft_ms if args.ttft_x is None else unloaded.ttft_ms(args.ttft_x)
        tpot_ms = tpot_ms if args.tpot_x is None else unloaded.tpot_ms(args.tpot_x)
    facts["promise"] = f"TTFT {_promise(ttft_ms, args.ttft_x)}, TPOT {_promise(tpot_ms, args.tpot_x)}"
    if args.itl_ms is not None:
        facts["promise"] += f", ITL {_promise(args.itl_ms, None)}"
    promise = Slo(ttft_ms, tpot_ms, args.itl_ms)
    if recorded is not None:
        if promise != NO_PROMISE:
            recorded = recorded.asking(Promises(ttft_ms, tpot_ms, args.itl_ms))
        elif recorded.kind.has_promises:
            facts["promise"] = "as recorded"
        return Setting([round(rate_per_s(recorded.requests), 3)], promise, facts, recorded)
    if args.rate:
        return Setting(args.rate, promise, facts)
    with console.status(f"measuring what {first.name} carries"):
        full = await measure_capacity(first, args.workload, args.scale, args.cap)
    loads = args.load or [0.6]
    facts["capacity"] = f"{full:.2f} requests/s kept full; loads {_listed(loads)}"
    return Setting([round(full * load, 3) for load in loads], promise, facts)


def _sample(args: argparse.Namespace, recorded: Recorded | None) -> list[RequestShape]:
    """Return some requests, whose prompts are measured without load."""
    if recorded is None:
        return shapes(args.workload, UNLOADED_REQUESTS, 0, args.scale)
    return random.Random(0).sample(recorded.lengths, min(UNLOADED_REQUESTS, len(recorded.lengths)))


def _promise(ms: int | None, ratio: float | None) -> str:
    if ms is None:
        return "none"
    return f"{ms} ms" if ratio is None else f"{ms} ms ({ratio:g} ×)"


def _facts(args: argparse.Namespace, recorded: Recorded | None) -> dict[str, str]:
    return {
        "command": " ".join(["baton bench", *args.argv]),
        **(_drawn_facts(args) if recorded is None else trace_facts(str(args.trace), recorded.facts())),
        "fleet": _fleet(args),
        **machine(),
    }


def _drawn_facts(args: argparse.Namespace) -> dict[str, str]:
    cap = f", lengths redrawn above {args.cap}" if args.cap else ""
    return {
        "workload": f"{args.workload} × {args.scale:g}{cap}",
        "arrivals": f"{args.arrivals}, {args.duration_s:g} s per run, first tenth dropped",
    }


def _fleet(args: argparse.Namespace) -> str:
    if args.address:
        return "running already"
    timed = f", timed by {args.timed}" if args.timed else ""
    return f"{args.prefill} prefill and {args.decode} decode workers{timed}"


async def _measure(args: argparse.Namespace, targets: Sequence[Target], setting: Setting) -> Results:
    with progress_bars() as progress:
        runs = [
            await _run(args, at, setting, rate, seed, progress)
            for rate in setting.rates
            for turn, seed in enumerate(args.seeds)
            for at in by_turns(targets, turn)
        ]
    order = {at.name: place for place, at in enumerate(targets)}
    runs.sort(key=lambda run: (run.rate_per_s, order[run.arm], run.seed))
    title = f"{args.workload} × {args.scale:g}, {args.arrivals} arrivals"
    if setting.recorded is not None:
        title = f"{args.trace.name} × {args.scale:g}, arrivals as recorded"
    return Results(title, setting.facts, tuple(runs))


async def _run(
    args: argparse.Namespace, at: Target, setting: Setting, rate: float, seed: int, progress: Progress
) -> Run:
    work: Iterable[Job]
    if setting.recorded is not None:
        times = [request.at_s for request in setting.recorded.requests]
        work = recorded_jobs(at, setting.recorded.requests, seed)
    else:
        times = run_times(args, rate, seed)
        lengths = shapes(args.workload, len(times), seed, args.scale, args.cap)
        work = jobs(at, lengths, f"{seed}:{rate}", setting.promise)
    task = progress.add_task(f"{at.name} at {rate:g}/s, seed {seed}", total=len(times))
    began_s = time.monotonic()
    records, summary = await observed(at, work, times, lambda: progress.advance(task))
    return Run(at.name, rate, seed, summary, began_s, time.monotonic(), *samples(records))


def run_times(args: argparse.Namespace, rate: float, seed: int) -> list[float]:
    """Return the sending times of a run's requests, from its start; at least one."""
    most = args.requests or (BURST_REQUESTS if args.arrivals == "burst" else None)
    times = itertools.takewhile(lambda at: at < args.duration_s, arrivals(args.arrivals, rate, seed))
    return list(itertools.islice(times, most))


async def observed(
    at: Target, work: Iterable[Job], times: Sequence[float], done: Callable[[], None]
) -> tuple[list[RequestRecord], Summary]:
    """Run once, and record the fleet's metrics meanwhile."""
    before = await cpu_and_tokens(at.metrics_addresses)
    async with kv_observed(at.client) as kv:
        records = await open_loop(at.send, work, times, done)
    after = await cpu_and_tokens(at.metrics_addresses)
    cpu_s, tokens = (later - earlier for earlier, later in zip(before, after, strict=True))
    report_failures(at.name, records)
    return records, summarise(
        records,
        kv_utilisation=statistics.fmean(kv) if kv else None,
        router_cpu_us_per_token=cpu_s / tokens * 1e6 if tokens else None,
    )


def report_failures(arm: str, records: Sequence[RequestRecord]) -> None:
    failures = [record.error for record in records if record.error]
    if failures:
        print(f"{arm}: {len(failures)} requests failed, the first: {failures[0]}", file=sys.stderr)


def samples(records: Sequence[RequestRecord]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return TTFT and TPOT of the finished requests after the first tenth, in seconds."""
    ordered = sorted(records, key=lambda record: record.sent_at)
    done = [record for record in ordered[len(ordered) // 10 :] if record.completed]
    ttft = tuple(round(record.ttft_s, 6) for record in done if record.ttft_s is not None)
    return ttft, tuple(round(record.tpot_s, 6) for record in done if record.tpot_s is not None)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(bench(args))
