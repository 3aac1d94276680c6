"""Measure what it brings to keep each worker's threads on cores of its own.

One fleet has a decode worker of one thread for each core. It serves the same load in turns with workers that
the system may move to any core, and with workers that are pinned apart; alone, and beside compilers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from baton.fleet import Fleet, FleetSpec
from benchmarks.compilers import compilers
from benchmarks.cpu.random_model import random_model
from benchmarks.flags import count
from benchmarks.fleets.arms import reached
from benchmarks.fleets.load import closed_loop, jobs
from benchmarks.fleets.metrics import RequestRecord
from benchmarks.report import report
from reporting.progress import tracked
from reporting.section import Section, markdown
from reporting.tables import cell
from workloads.shapes import RequestShape

MOVED, PINNED = ARMS = ("moved", "pinned")
SHAPE = RequestShape(64, 48)
SEQUENCES = 4
"""Running on each worker at a time."""
Found = dict[tuple[int, str], list[tuple[float, float]]]
"""Output tokens per second and the 99th percentile of gaps in seconds, by compilers beside and arm."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dtype", default="bfloat16", choices=("float32", "bfloat16"), help="the type of weights (bfloat16)")
    add("--requests", type=count, default=24, metavar="N", help="requests of each turn (24)")
    add("--model", type=Path, metavar="PATH", help="the checkpoint (a random one of 200 million weights)")


def run(args: argparse.Namespace) -> int:
    """Serve the load in turns, once per seed and number of compilers."""
    found = asyncio.run(_measure(args))
    rows = []
    for beside in sorted({beside for beside, _ in found}):
        moved, pinned = ([*zip(*found[beside, arm], strict=True)] for arm in ARMS)
        ratios = [fast / slow for fast, slow in zip(pinned[0], moved[0], strict=True)]
        rates = (cell(moved[0], spec=".0f"), cell(pinned[0], spec=".0f"), cell(ratios))
        rows.append((str(beside), *rates, cell(moved[1], 1e3, ".0f"), cell(pinned[1], 1e3, ".0f")))
    rates_of, gaps_of = ([f"{arm}, {what}" for arm in ARMS] for what in ("tok/s", "gap P99, ms"))
    columns = ("compilers", *rates_of, "ratio", *gaps_of)
    method = (
        f"{os.cpu_count()} cores, as many decode workers of one thread, {SEQUENCES} sequences on each, "
        f"{SHAPE.prompt_tokens} tokens in and {SHAPE.output_tokens} out, {args.dtype}."
    )
    return report(args, [Section("Workers pinned apart", method, (), (markdown(columns, rows),))])


async def _measure(args: argparse.Namespace) -> Found:
    cores = sorted(os.sched_getaffinity(0))
    flags = {"decode": ("--dtype", args.dtype)}
    model = args.model or random_model()
    spec = FleetSpec(model, prefill=0, decode=len(cores), threads=1, placement="aggregated", extra_args=flags)
    found: Found = defaultdict(list)
    turns = [(seed, beside) for beside in (0, len(cores)) for seed in args.seeds]
    async with Fleet(spec) as fleet, reached(fleet.router_addresses, "pinning") as target:
        workers = [fleet.process(f"decode-{place}").pid for place in range(len(cores))]
        for seed, beside in tracked(turns, "turns"):
            with compilers(beside):
                for arm in random.Random(seed).sample(ARMS, len(ARMS)):
                    for pid, core in zip(workers, cores, strict=True):
                        set_cores(pid, {core} if arm == PINNED else set(cores))
                    asked = jobs(target, [SHAPE] * args.requests, f"{seed} {beside} {arm}")
                    served = await closed_loop(target.send, asked, SEQUENCES * len(cores))
                    found[beside, arm].append(_figures(served))
    return found


def set_cores(pid: int, cores: set[int]) -> None:
    """Let all threads of a process, and those that they start, run on these cores only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _figures(records: Sequence[RequestRecord]) -> tuple[float, float]:
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed, the first by {failed[0]}")
    times = sorted(itertools.chain.from_iterable(record.token_times for record in records))
    gaps = [gap for record in records for gap in record.gaps_s]
    return len(times) / (times[-1] - min(record.sent_at for record in records)), quantiles(gaps, n=100)[-1]
