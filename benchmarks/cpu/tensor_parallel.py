"""Measure what a second process brings: steps of two processes, beside one with a thread and with two.

All compute the same steps, in turns in random order. Times are wall-clock times, so nothing else should run
on this machine. With `--apart` the processes share no memory, as on several hosts, but the network between
them is this machine's.
"""

from __future__ import annotations

import argparse
import random
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.cpu.processes import (
    CONTEXT,
    POOL_TOKENS,
    TOKENS,
    Figures,
    add_process_flags,
    compare,
    section_of,
)
from benchmarks.cpu.random_model import random_model
from benchmarks.report import report
from benchmarks.settings import BLOCK_SIZE, cpu_settings
from engine.build import can_fuse, follow_leader
from engine.calibration.grid import Step
from engine.calibration.sweep import make_batch
from engine.execution.model_runner import ModelRunner
from engine.group.leader import Leader
from engine.group.links import Link
from engine.group.remote.group import RemoteLeader
from engine.kv.kv_pool import KVPool
from engine.model.fingerprint import fingerprint
from engine.model.model import DTYPES, Model, load_model
from engine.model.parallel.part import Part
from engine.model.step_batch import StepBatch
from engine.starting import ignore_progress
from reporting.progress import tracked
from worker.startup.group.followers import start_followers
from worker.startup.group.hosts import Place
from worker.startup.group.rendezvous import connect

CPU = torch.device("cpu")
STEPS = {
    "1 decode": Step(1, CONTEXT),
    "8 decodes": Step(8, CONTEXT),
    "32 decodes": Step(32, CONTEXT),
    "256 tokens of prompt": Step(0, 0, (0, TOKENS)),
}
GOAL = 1.5
"""How many times faster two cores should be than one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_flags(parser, "processes", "processes that compute a step together", rounds=20)
    parser.add_argument(
        "--apart", action="store_true", help="let the processes share no memory, as on several hosts"
    )


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
        runners = ((whole, 1), (whole, args.processes), (split, 1))
        found: dict[str, list[Figures]] = {name: [] for name in STEPS}
        works = [(name, seed) for seed in args.seeds for name in STEPS]
        for name, seed in tracked(works, "steps"):
            batch = make_batch(whole, STEPS[name])
            contenders = [(partial(_seconds, runner, batch), threads) for runner, threads in runners]
            found[name].append(compare(contenders, args.rounds, random.Random(seed)))
    finally:
        followers.end()
    how = "processes that share no memory" if args.apart else "processes"
    method = (
        f"{path.name}, {args.dtype}, a thread for each of the {how}; contexts of {CONTEXT} tokens; "
        f"medians of {args.rounds} rounds, measured {len(args.seeds)} times. Wall-clock times."
    )
    goals = dict.fromkeys(STEPS, GOAL)
    title, last = "Tensor parallelism, by step", f"{args.processes} processes"
    return report(args, [section_of(title, method, found, goals, last)])


def _follow(
    args: argparse.Namespace, path: Path, place: Place, part: tuple[int, int], links: Sequence[Link]
) -> int:
    most_decodes = max(step.num_decodes for step in STEPS.values())
    usual = cpu_settings(path, args.dtype, POOL_TOKENS, max_num_seqs=most_decodes)
    settings = replace(usual, token_budget=TOKENS, part=Part(*part), shares_memory=not args.apart)
    follow_leader(settings, connect(replace(place, rank=part[0]), None) if args.apart else links[0])
    return 0


def _split(args: argparse.Namespace, path: Path, leader: Leader | RemoteLeader) -> ModelRunner:
    model = _load(args, path, Part(0, args.processes))
    runner = ModelRunner(*_with_pool(model), leader)
    leader.wait_ready(fingerprint(path, model.block_layout(BLOCK_SIZE)), ignore_progress)
    leader.open(runner, TOKENS)
    return runner


def _load(args: argparse.Namespace, path: Path, part: Part | None) -> Model:
    dtype = DTYPES[args.dtype]
    fused = can_fuse(CPU, dtype, deterministic=False)
    return load_model(path, dtype, CPU, fused=fused, part=part, shares_memory=part is None or not args.apart)


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


def _with_pool(model: Model) -> tuple[Model, KVPool]:
    return model, KVPool(model.block_layout(BLOCK_SIZE), POOL_TOKENS // BLOCK_SIZE)


def _seconds(runner: ModelRunner, batch: StepBatch) -> float:
    began_s = time.perf_counter()
    runner.forward(batch)
    return time.perf_counter() - began_s
