"""Measures a fleet over real gRPC: a workload at a rate, or continuous batching against its alternatives.

    python -m benchmarks.serve --address 127.0.0.1:50051 --workload chat --scale 0.1 --rate 4
    python -m benchmarks.serve --compare                        # starts a fleet of its own

Without --address a fleet of one prefill and one decode worker is started on the demo checkpoint and stopped
afterwards. `--compare` runs three arms on the same requests, interleaved, once per seed: one request at
a time, static batches (the next one when the whole batch is over), continuous batching with as many at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from benchmarks.load import Job, closed_loop, jobs, open_loop, static_batches
from benchmarks.metrics import RequestRecord, Summary, summarise
from benchmarks.observe import KVObserver, RouterCost
from benchmarks.report import machine, summary_table
from workloads.shapes import WORKLOADS, arrivals, shapes

ARMS = ("one at a time", "static", "continuous")


@dataclass(frozen=True, slots=True)
class Target:
    """A running fleet."""

    client: AsyncClient
    metrics_addresses: tuple[str, ...]
    vocab_size: int
    max_context_tokens: int


def parse(argv: Sequence[str]) -> argparse.Namespace:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--address", action="append", help="a router of a running fleet; repeat for several")
    add("--router-metrics", action="append", default=[], help="its metrics address, for its CPU per token")
    add("--model", type=Path, default=Path("demo_model"), help="for a fleet of its own")
    add("--prefill", type=int, default=1, help="for a fleet of its own")
    add("--decode", type=int, default=1, help="for a fleet of its own")
    add("--workload", choices=sorted(WORKLOADS), default="burst")
    add("--cap", type=int, help="redraw lengths above this many tokens, before scaling")
    add("--scale", type=float, default=0.25, help="multiplies all lengths")
    add("--requests", type=int, default=64)
    add("--rate", type=float, default=4.0, help="requests per second")
    add("--arrivals", default="poisson", help="poisson, gamma:CV, onoff or burst")
    add("--ttft-ms", type=int)
    add("--tpot-ms", type=int)
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--compare", action="store_true", help="continuous batching against one at a time and static")
    add("--batch", type=int, default=16, help="requests at once in the static and continuous arms")
    add("--json", type=Path, help="write everything measured to this file")
    return parser.parse_args(argv)


@contextlib.asynccontextmanager
async def target(args: argparse.Namespace) -> AsyncIterator[Target]:
    """The fleet named, or one of its own."""
    async with contextlib.AsyncExitStack() as stack:
        addresses, metrics = args.address, tuple(args.router_metrics)
        if not addresses:
            spec = FleetSpec(model=args.model, prefill=args.prefill, decode=args.decode)
            fleet = await stack.enter_async_context(Fleet(spec))
            addresses = fleet.router_addresses
            metrics = tuple(fleet.process(name).metrics_address for name in spec.router_names)
        client = await stack.enter_async_context(AsyncClient(addresses))
        model = (await client.models())[0]
        yield Target(client, metrics, model.vocab_size, model.max_context_tokens)


Run = Callable[[Sequence[Job], Callable[[int], None]], Awaitable[list[RequestRecord]]]


async def measure(at: Target, work: Sequence[Job], run: Run, label: str) -> Summary:
    """One run with everything observed around it."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=len(work))
        cost = RouterCost(at.metrics_addresses)
        async with KVObserver(at.client) as kv, cost:
            records = await run(work, lambda done: progress.advance(task, done))
    failures = [one.error for one in records if one.error]
    if failures:
        print(f"{label}: {len(failures)} requests failed, the first: {failures[0]}", file=sys.stderr)
    return summarise(records, kv_utilisation=kv.mean, router_cpu_us_per_token=cost.us_per_token)


def _work(args: argparse.Namespace, at: Target, seed: int) -> list[Job]:
    return jobs(
        shapes(args.workload, args.requests, seed, args.scale, args.cap),
        vocab_size=at.vocab_size,
        max_context_tokens=at.max_context_tokens,
        seed=seed,
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
    )


async def at_a_rate(args: argparse.Namespace, at: Target, seed: int) -> dict[str, Summary]:
    times = arrivals(args.arrivals, args.rate, seed)

    async def run(work: Sequence[Job], progress: Callable[[int], None]) -> list[RequestRecord]:
        return await open_loop(at.client, work, times, progress)

    label = f"{args.workload} at {args.rate:g}/s, seed {seed}"
    return {f"seed {seed}": await measure(at, _work(args, at, seed), run, label)}


async def compared(args: argparse.Namespace, at: Target, seed: int) -> dict[str, Summary]:
    """The three arms on the same requests, begun with another one for every seed."""
    runs: dict[str, Run] = {
        "one at a time": lambda work, progress: closed_loop(at.client, work, 1, progress),
        "static": lambda work, progress: static_batches(at.client, work, args.batch, progress),
        "continuous": lambda work, progress: closed_loop(at.client, work, args.batch, progress),
    }
    first = seed % len(ARMS)
    found: dict[str, Summary] = {}
    for arm in (*ARMS[first:], *ARMS[:first]):
        found[arm] = await measure(at, _work(args, at, seed), runs[arm], f"{arm}, seed {seed}")
    return {arm: found[arm] for arm in ARMS}


def ratios(rounds: Sequence[dict[str, Summary]]) -> dict[str, list[float]]:
    """Continuous batching's output tokens/s over each alternative's, once per seed."""
    return {
        arm: [one["continuous"].output_tokens_per_s / one[arm].output_tokens_per_s for one in rounds]
        for arm in ARMS[:2]
    }


def _print_ratios(console: Console, found: dict[str, list[float]]) -> None:
    for arm, values in found.items():
        spread = ", ".join(f"{value:.2f}" for value in sorted(values))
        console.print(f"continuous / {arm}: median [bold]{statistics.median(values):.2f}[/] of {spread}")


async def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    console = Console()
    about = machine()
    async with target(args) as at:
        rounds = [await (compared if args.compare else at_a_rate)(args, at, seed) for seed in args.seeds]
    for seed, one in zip(args.seeds, rounds, strict=True):
        if args.compare:
            console.print(summary_table(f"{args.workload} x {args.scale:g}, seed {seed}", one))
    if args.compare:
        _print_ratios(console, ratios(rounds))
    else:
        merged = {name: summary for one in rounds for name, summary in one.items()}
        console.print(summary_table(f"{args.workload} x {args.scale:g} at {args.rate:g}/s", merged))
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    if args.json:
        document = {
            "command": ["python", "-m", "benchmarks.serve", *argv],
            "machine": about,
            "rounds": [{name: summary.as_dict() for name, summary in one.items()} for one in rounds],
        }
        args.json.write_text(json.dumps(document, indent=1))
    failed = any(summary.failed for one in rounds for summary in one.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
