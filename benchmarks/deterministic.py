"""What deterministic mode costs: the same steps by the same model with and without it, taking turns.

Times are of the processor, not of the clock: who else uses the machine counts less. Each ratio is the median
over rounds in which both kinds of step ran one after the other, in an order that alternates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from engine.kv_pool import KVPool
from engine.model import DTYPES, load_model
from engine.model_runner import ModelRunner
from engine.sameness import prove_sameness
from engine.step_batch import StepBatch
from engine.sweep import make_batch
from engine.sweep_grid import Step

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"
BLOCK_SIZE, NUM_BLOCKS = 16, 2400
STEPS = {
    "1 decode at 512": Step(1, 512),
    "8 decodes at 128": Step(8, 128),
    "8 decodes at 512": Step(8, 512),
    "16 decodes at 512": Step(16, 512),
    "32 decodes at 512": Step(32, 512),
    "32 decodes at 1024": Step(32, 1024),
    "64 tokens of prompt": Step(0, 0, (0, 64)),
    "256 tokens of prompt": Step(0, 0, (0, 256)),
    "256 tokens after 512": Step(0, 0, (512, 256)),
    "256 tokens after 2048": Step(0, 0, (2048, 256)),
    "16 decodes at 512, 128 tokens": Step(16, 512, (128, 128)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, metavar="PATH")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the worker (1)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="of each step (30)")


def run(args: argparse.Namespace) -> int:
    for flag in ("threads", "rounds"):
        if getattr(args, flag) < 1:
            raise ValueError(f"--{flag} is {getattr(args, flag)}; accepted: 1 or more")
    torch.set_num_threads(args.threads)
    plain, same = (_runner(args, deterministic=kind) for kind in (False, True))
    started = time.perf_counter()
    digest = prove_sameness(same)
    print(f"proven in {time.perf_counter() - started:.2f} s: {digest}")
    print(f"{'step':32}{'plain, ms':>12}{'same, ms':>12}{'ratio':>8}")
    for name, step in STEPS.items():
        batches = [make_batch(runner, step) for runner in (plain, same)]
        before, after, ratio = _compare((plain, same), batches, args.rounds)
        print(f"{name:32}{before * 1e3:12.2f}{after * 1e3:12.2f}{ratio:8.2f}")
    return 0


def _runner(args: argparse.Namespace, *, deterministic: bool) -> ModelRunner:
    model = load_model(args.model, DTYPES[args.dtype], torch.device("cpu"), deterministic=deterministic)
    return ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS))


def _compare(
    runners: tuple[ModelRunner, ModelRunner], batches: list[StepBatch], rounds: int
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of their ratios."""
    for runner, batch in zip(runners, batches, strict=True):
        runner.forward(batch)
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for kind in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            runners[kind].forward(batches[kind])
            seconds[kind].append(time.process_time() - began)
    ratios = [after / before for before, after in zip(*seconds, strict=True)]
    return statistics.median(seconds[0]), statistics.median(seconds[1]), statistics.median(ratios)
