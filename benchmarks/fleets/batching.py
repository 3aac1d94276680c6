"""Compare continuous batching with static batching: three ratios, and the case with nothing to gain.

    python -m benchmarks batching --json batching.json

All requests arrive at once, and the time until the last one is over counts; tokens are prompt and output. One
worker on one thread computes prompts and outputs. Per seed all arms get the same requests, by turns:

    plain transformers   `generate` on padded batches of --batch, in a process without a fleet
    static, batch        policy `static` on our engine, batches of --batch
    continuous, batch    --policy on our engine, no more than --batch at once
    static, memory       policy `static`, as many at once as fit into the KV blocks
    continuous, memory   --policy, as many as fit into the same blocks

Outputs are exponential, redrawn above a cap, and once all of one length. Static batches are kinder here than
in the published comparisons: `static` does not compute members that have ended, and reserves what a request
asks for, which is what it then generates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import multiprocessing
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

from baton.fleet import FleetSpec
from benchmarks.flags import whole_numbers
from benchmarks.fleets.arms import Arm, Target, started
from benchmarks.fleets.bench import by_turns, report_failures
from benchmarks.fleets.doors.sending import Job
from benchmarks.fleets.load import jobs, open_loop
from benchmarks.fleets.metrics import RequestRecord, summarise
from benchmarks.report import report
from reporting.progress import progress_bars
from reporting.results import Results, Run, Summary, figures, paired_ratios
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from workloads.shapes import RequestShape, shapes

AT_ONCE = math.inf
BURST_PROMPT, BURST_OUTPUT = 512, 128
PLAIN = "plain transformers"
BLOCK_SIZE = 16
MOST_SEQS = 64
METRIC = "total_tokens_per_s"
COLUMNS = ((METRIC, ".0f"), ("output_tokens_per_s", ".0f"), ("completed_per_s", ".1f"))
RATIOS = (
    ("continuous, memory", PLAIN),
    ("continuous, batch", "static, batch"),
    ("continuous, memory", "static, memory"),
)
"""The claims: over plain transformers, at the same batch size, in the same memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """A distribution of output lengths; without a cap all have the mean."""

    name: str
    cap: int | None

    def drawn(self, count: int, seed: int, scale: float) -> list[RequestShape]:
        """Return the requests of a seed."""
        if self.cap is not None:
            return shapes("burst", count, seed, scale, self.cap)
        return [RequestShape(round(BURST_PROMPT * scale), round(BURST_OUTPUT * scale))] * count

    @property
    def longest(self) -> int:
        """Tokens of its longest request, before scaling."""
        return BURST_PROMPT + (self.cap or BURST_OUTPUT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--policy", default="slack", metavar="NAME", help="the policy that batches continuously (slack)")
    add("--batch", type=int, default=8, metavar="N", help="requests of a batch that is fixed (8)")
    add("--memory-seqs", type=int, default=16, metavar="N", help="KV memory, in longest requests (16)")
    add("--caps", type=whole_numbers, default=[512], metavar="N,N", help="longest outputs, unscaled (512)")
    add("--scale", type=float, default=0.25, metavar="X", help="multiplies all lengths (0.25)")
    add("--requests", type=int, default=128, metavar="N", help="requests of a run (128)")


def run(args: argparse.Namespace) -> int:
    """Measure all cases; the exit code is 1 if a request failed or a goal is missed."""
    failed: list[int] = []
    return report(args, _sections(args, failed)) or int(any(failed))


def _sections(args: argparse.Namespace, failed: list[int]) -> Iterator[Section]:
    cases = [Case(f"exponential outputs up to {cap}", cap) for cap in args.caps] + [Case("one length", None)]
    for case in cases:
        results = asyncio.run(_measure(args, case))
        failed += [run.summary.failed for run in results.runs]
        yield section(case, results)


@contextlib.asynccontextmanager
async def _fleets(args: argparse.Namespace, blocks: int) -> AsyncIterator[list[Target]]:
    """Run fleets of one worker, which differ only in the policy and in the limit of a batch."""
    bounds = {
        "batch": ["--max-num-seqs", str(args.batch)],
        "memory": ["--max-num-seqs", str(MOST_SEQS), "--num-blocks", str(blocks)],
    }
    async with contextlib.AsyncExitStack() as stack:
        targets: list[Target] = []
        for bound, flags in bounds.items():
            for kind, policy in (("static", "static"), ("continuous", args.policy)):
                extra = {"decode": [*flags, "--block-size", str(BLOCK_SIZE), "--threads", "1"]}
                base = FleetSpec(args.model, prefill=0, extra_args=extra)
                target = await stack.enter_async_context(started(Arm(policy, "aggregated"), base))
                targets.append(replace(target, name=f"{kind}, {bound}"))
        yield targets


def section(case: Case, results: Results) -> Section:
    """Return the three ratios, then every arm. There are no goals if all outputs have the same length."""
    ratios = {
        f"{ours} / {theirs}": paired_ratios(results, METRIC, ours, theirs, AT_ONCE) for ours, theirs in RATIOS
    }
    goals = [Goal(name, tuple(found), 1.0) for name, found in ratios.items() if case.cap is not None]
    shown = markdown(("ratio", "measured"), [(name, cell(found)) for name, found in ratios.items()])
    rows = [
        (arm, *(cell(figures(results.of(arm, AT_ONCE), name), spec=spec) for name, spec in COLUMNS))
        for arm in results.arms
    ]
    arms = markdown(("arm", "prompt + output tokens/s", "output tokens/s", "requests/s"), rows)
    method = "; ".join(f"{name} {said}" for name, said in results.facts.items()) + "."
    tables = (arms,) if goals else (shown, arms)
    return Section(f"Batching: {results.title}", method, tuple(goals), tables, {"results": asdict(results)})


async def _measure(args: argparse.Namespace, case: Case) -> Results:
    blocks = args.memory_seqs * math.ceil(case.longest * args.scale / BLOCK_SIZE)
    runs: list[Run] = []
    async with _fleets(args, blocks) as fleets:
        arms: list[Target | None] = [None, *fleets]
        with progress_bars() as progress:
            task = progress.add_task(case.name, total=len(args.seeds) * len(arms))
            for turn, seed in enumerate(args.seeds):
                for at in by_turns(arms, turn):
                    runs.append(await _run(args, case, at, fleets[0], seed))
                    progress.advance(task)
    runs.sort(key=lambda run: ([PLAIN, *(at.name for at in fleets)].index(run.arm), run.seed))
    memory = f"{blocks} blocks of {BLOCK_SIZE} tokens, {args.memory_seqs} of the longest requests"
    facts = {
        "workload": f"burst × {args.scale:g}, {args.requests} requests at once, {case.name}",
        "memory": memory,
        "batch": str(args.batch),
    }
    return Results(f"burst × {args.scale:g}, {case.name}", facts, tuple(runs))


async def _run(args: argparse.Namespace, case: Case, at: Target | None, any_fleet: Target, seed: int) -> Run:
    work = jobs(any_fleet, case.drawn(args.requests, seed, args.scale), f"{case.name}:{seed}")
    if at is None:
        return Run(PLAIN, AT_ONCE, seed, await _plainly(args, work))
    records = await open_loop(at.send, work, [0.0] * len(work))
    report_failures(at.name, records)
    return Run(at.name, AT_ONCE, seed, summarise(records, warmup_share=0.0))


async def _plainly(args: argparse.Namespace, work: Sequence[Job]) -> Summary:
    """Serve the same requests by transformers alone, in a process of its own."""
    from benchmarks.fleets.plain_transformers import ends_s  # noqa: PLC0415  (transformers takes seconds to load)

    asked = [(job.token_ids, job.output_tokens) for job in work]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        serving = asyncio.get_running_loop().run_in_executor(pool, ends_s, args.model, asked, args.batch)
        ends = await serving
    records = [
        RequestRecord(0.0, len(ids), num_tokens, token_times=[end] * num_tokens, finished_at=end)
        for (ids, num_tokens), end in zip(asked, ends, strict=True)
    ]
    # Nothing is streamed: there is no first token, and no gap between two.
    return replace(summarise(records, warmup_share=0.0), itl=None)
