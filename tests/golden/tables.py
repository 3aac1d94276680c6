"""Simulations whose outcome is stored to the last bit: `python -m tests.golden.tables` stores them anew.

Each is what `baton simulate` does with these flags: its table, the figures of each run, and digests of all
requests' ends and of all workers' steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from sim.commands import simulate
from sim.commands.arguments import Load, Parser, load_of
from sim.commands.arms import Arm, arms
from sim.commands.false_refusals import false_refusals
from sim.metrics import measure
from sim.play.simulation import run
from sim.result import RequestResult, SimResult, WorkerResult
from sim.workloads.trace import TraceRequest

FOLDER = Path(__file__).with_name("tables")
CASES = {
    "all-policies": "--policy all --fleet 1p2d --workload chat --load 0.9 --duration-s 15",
    "overload": "--policy slack --fleet 1p1d --workload mixed --load 1.4 --duration-s 20 --routers 2 "
    "--false-refusals 2",
    "shared-prefixes": "--policy slack,chunked --placement disaggregated --fleet 2p2d --workload shared "
    "--arrivals gamma:3 --load 0.7 --duration-s 20 --seeds 2",
    "small-model": "--policy slack --fleet 1p2d --profile demo-cpu --scale 0.1 --workload burst "
    "--load 0.6,1.1 --duration-s 2 --seed 5",
    "every-gap": "--policy slack --placement conditional --fleet 1p2d --workload summarise "
    "--itl-ms 60 --load 1 --duration-s 40 --noise 0",
    "without-slo": "--policy slack,orca --placement aggregated --fleet 2d --no-slo --max-seqs 16 --workload "
    "mixed --arrivals onoff --load 0.8 --duration-s 20",
}
"""The flags of `baton simulate` by name."""


def outcome(flags: str) -> dict[str, Any]:
    """Run one case; floats are compared as JSON has them, which is exact."""
    parser = Parser()
    simulate.add_flags(parser)
    args = parser.parse_args(shlex.split(flags))
    load = load_of(args)
    fleet = simulate.fleet_of(args)
    tables: list[str] = []
    runs = []
    for rate in simulate.rates_of(args, load, fleet):
        told: list[simulate.ArmRun] = []
        for seed in range(args.seed, args.seed + args.seeds):
            trace = load.trace(rate, seed)
            for arm in arms(args.policy, args.placement, fleet, args.token_budget):
                one, row = _run(args, arm, trace, rate, seed)
                told.append(one)
                runs.append(row)
        tables += _table(args, load, told)
    return {"flags": flags, "table": tables, "runs": runs}


def _run(
    args: argparse.Namespace, arm: Arm, trace: tuple[TraceRequest, ...], rate: float, seed: int
) -> tuple[simulate.ArmRun, dict[str, Any]]:
    spec = simulate.spec_of(args, arm, trace, seed, log_steps=True)
    result = run(spec)
    false = false_refusals(spec, result, args.false_refusals) if args.false_refusals else None
    metrics = measure(result)
    shown = simulate.ArmRun(arm, rate, seed, metrics, {}, false_refusals=false)
    row = {
        "arm": f"{arm.name} {arm.fleet}",
        "rate_per_s": rate,
        "seed": seed,
        "metrics": dataclasses.asdict(metrics),
        **_digests(result),
    }
    return shown, row


def _digests(result: SimResult) -> dict[str, Any]:
    return {
        "ended_s": result.ended_s,
        "calls": result.num_events,
        "leftovers": dict(result.leftovers),
        "requests": digest(_request_row(request) for request in result.requests),
        "workers": {worker.name: _worker_row(worker) for worker in result.workers},
    }


def _request_row(one: RequestResult) -> list[Any]:
    return [
        one.end.value, one.ttft_s, one.tpot_s, one.e2e_s, one.queue_s, one.max_gap_s, one.p99_gap_s,
        one.promised_ttft_s, one.at_risk, one.cached_tokens, one.attempts, "", one.error,
        one.refused_for,
    ]  # fmt: skip


def _worker_row(one: WorkerResult) -> list[Any]:
    steps = digest([step.at_s, step.step_s, step.num_decodes, step.prefill_tokens] for step in one.steps)
    ends = digest([float(end), int(size)] for end, size in zip(one.step_ends, one.step_sizes, strict=True))
    return [
        one.role, one.num_steps, one.num_mixed_steps, one.busy_s, one.chunk_tokens, one.decode_tokens,
        one.preemptions, one.recomputed_tokens, one.kv_allocated, one.kv_held, steps, ends,
    ]  # fmt: skip


def digest(rows: Iterable[list[Any]]) -> str:
    """Name all rows; each float counts to its last bit."""
    hashed = hashlib.blake2b(digest_size=16)
    for row in rows:
        hashed.update(json.dumps(row).encode() + b"\n")
    return hashed.hexdigest()


def _table(args: argparse.Namespace, load: Load, runs: list[simulate.ArmRun]) -> Iterator[str]:
    text = io.StringIO()
    simulate.show(Console(file=text, width=simulate.WIDTH), args, load, runs)
    return (line.rstrip() for line in text.getvalue().splitlines())


def text_of(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, flags in CASES.items():
        (FOLDER / f"{name}.json").write_text(text_of(outcome(flags)), encoding="utf-8")
