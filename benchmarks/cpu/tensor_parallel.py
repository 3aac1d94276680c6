"""Measure what a second process brings: steps of two processes, beside one with a thread and with two.

All compute the same steps, in turns in random order. Times are wall-clock times, so nothing else should run
on this machine. With `--apart` the processes share no memory, as on several hosts, but the network between
them is this machine's.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.costs.deterministic import BLOCK_SIZE, columns_of
from benchmarks.cpu.random_model import random_model
from benchmarks.flags import count
from benchmarks.report import report
from engine.build import EngineSettings, can_fuse, follow_leader
from engine.calibration.sweep import Step, make_batch
from engine.execution.model_runner import ModelRunner
from engine.group.leader import Leader
from engine.group.links import Link
from engine.group.remote import RemoteLeader
from engine.kv.kv_pool import KVPool
from engine.model.fingerprint import fingerprint
from engine.model.model import DTYPES, Model, load_model
from engine.model.parallel.part import Part
from engine.model.step_batch import StepBatch
from engine.starting import ignore_progress
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from worker.startup.followers import start_followers
from worker.startup.hosts import Place
from worker.startup.rendezvous import connect

CPU = torch.device("cpu")
CONTEXT = 290
NUM_BLOCKS = 1000
TOKENS = 256
STEPS = {
    "1 decode": Step(1, CONTEXT),
    "8 decodes": Step(8, CONTEXT),
    "32 decodes": Step(32, CONTEXT),
    "256 tokens of prompt": Step(0, 0, (0, TOKENS)),
}
GOAL = 1.5
"""How many times faster two cores should be than one."""
Figures = tuple[float, float, float, float]
"""Median milliseconds with one thread, with several, and with several processes; the first / the last."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of the weights (bfloat16)")
    add("--processes", type=count, default=2, metavar="N", help="processes that compute a step together (2)")
    add("--rounds", type=count, default=20, metavar="N", help="rounds of each step (20)")
    add("--apart", action="store_true", help="let the processes share no memory, as on several hosts")
    add("--model", type=Path, metavar="PATH", help="the checkpoint (a random one of 200 million weights)")


def run(args: argparse.Namespace) -> int:
    """Time every step of both, once per seed."""
    torch.set_num_threads(1)  # forked processes could not use threads that this one has started
    path = random_model() if args.model is None else args.model
    flag = f"--tensor-parallel {args.processes}"
    place = Place(0, args.processes, "127.0.0.1", _free_port(), ("rank", "processes", "address"))
    followers = start_followers(args.processes, partial(_follow, args, path, place), flag)
    try:
        leader = RemoteLeader(connect(place, None)) if args.apart else Leader(followers.links)
        whole = ModelRunner(*_with_pool(_load(args, path, None)))
        split = _split(args, path, leader)
        contenders = ((whole, 1), (whole, args.processes), (split, 1))
        found: dict[str, list[Figures]] = {name: [] for name in STEPS}
        works = [(name, seed) for seed in args.seeds for name in STEPS]
        for name, seed in tracked(works, "steps"):
            batch = make_batch(whole, STEPS[name])
            found[name].append(_compare(contenders, batch, args.rounds, random.Random(seed)))
    finally:
        followers.end()
    num = args.processes
    goals = [
        Goal(f"{name}, one thread / {num} processes", tuple(figures[3] for figures in each), GOAL)
        for name, each in found.items()
    ]
    rows = [(name, *columns_of(figures)) for name, figures in found.items()]
    head = ("step", "one thread, ms", f"{num} threads, ms", f"{num} processes, ms", "first / last")
    table = markdown(head, rows)
    how = "processes that share no memory" if args.apart else "processes"
    method = (
        f"{path.name}, {args.dtype}, a thread for each of the {how}; contexts of {CONTEXT} tokens; "
        f"medians of {args.rounds} rounds, measured {len(args.seeds)} times. Wall-clock times."
    )
    section = Section("Tensor parallelism, by step", method, tuple(goals), (table,), {"steps": found})
    return report(args, [section])


def _follow(args: argparse.Namespace, path: Path, place: Place, part: tuple[int, int], link: Link) -> int:
    settings = EngineSettings(
        model=path,
        dtype=DTYPES[args.dtype],
        device=CPU,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        kv_memory_mb=None,
        max_num_seqs=max(step.num_decodes for step in STEPS.values()),
        token_budget=TOKENS,
        policy="slack",
        fusion=not args.apart,
        part=Part(*part),
    )
    follow_leader(settings, connect(replace(place, rank=part[0]), None) if args.apart else link)
    return 0


def _split(args: argparse.Namespace, path: Path, leader: Leader | RemoteLeader) -> ModelRunner:
    model = _load(args, path, Part(0, args.processes))
    runner = ModelRunner(*_with_pool(model), leader)
    leader.wait_ready(fingerprint(path, model.block_layout(BLOCK_SIZE)), ignore_progress)
    leader.open(runner, TOKENS)
    return runner


def _load(args: argparse.Namespace, path: Path, part: Part | None) -> Model:
    dtype = DTYPES[args.dtype]
    # Native layers meet in shared memory.
    fused = can_fuse(CPU, dtype, deterministic=False) and not (args.apart and part is not None)
    return load_model(path, dtype, CPU, fused=fused, part=part)


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


def _with_pool(model: Model) -> tuple[Model, KVPool]:
    return model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS)


def _compare(
    contenders: Sequence[tuple[ModelRunner, int]], batch: StepBatch, rounds: int, rng: random.Random
) -> Figures:
    """Time a step by each contender, a runner with a number of threads."""
    times: list[list[float]] = []
    for _ in range(1 + rounds):
        round_ms = [0.0] * len(contenders)
        for which in rng.sample(range(len(contenders)), len(contenders)):
            runner, threads = contenders[which]
            torch.set_num_threads(threads)
            began = time.perf_counter()
            runner.forward(batch)
            round_ms[which] = (time.perf_counter() - began) * 1000
        times.append(round_ms)
    counted = times[1:]  # the first round of a step may allocate
    one, threaded, several = (statistics.median(column) for column in zip(*counted, strict=True))
    return one, threaded, several, statistics.median(first / last for first, _, last in counted)
