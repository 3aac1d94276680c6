"""Measure the cost of deterministic mode: the same steps with and without it, taking turns.

Times are CPU times, which depend less on other load of the machine. Each ratio is the median over rounds in
which both kinds of step ran one after the other, in alternating order. Each seed is another repetition of all
measurements.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.flags import count
from benchmarks.report import report
from engine.build import can_fuse
from engine.calibration.determinism_check import check_determinism
from engine.calibration.grid import Step
from engine.calibration.sweep import make_batch
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.model import DTYPES, load_model
from engine.model.step_batch import StepBatch
from reporting.progress import tracked
from reporting.section import Section, markdown
from reporting.tables import cells

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
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="the type of the weights (float32)"
    )
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads of the worker (1)")
    parser.add_argument("--rounds", type=count, default=10, metavar="N", help="rounds of each step (10)")


def run(args: argparse.Namespace) -> int:
    """Time every step, once per seed."""
    torch.set_num_threads(args.threads)
    plain, same = (_runner(args, deterministic=kind) for kind in (False, True))
    began = time.process_time()
    check_determinism(same)
    proof_s = time.process_time() - began
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in STEPS}
    for name in tracked([*STEPS] * len(args.seeds), "steps"):
        found[name].append(compare((plain, same), STEPS[name], args.rounds))
    rows = [(name, *cells(figures)) for name, figures in found.items()]
    table = markdown(("step", "plain, ms", "deterministic, ms", "ratio"), rows)
    method = (
        f"{args.model.name}, {args.dtype}, {args.threads} threads; medians of {args.rounds} rounds, "
        f"measured {len(args.seeds)} times. The proof at the start took {proof_s:.2f} s."
    )
    return report(args, [Section("Deterministic mode, by step", method, (), (table,), {"steps": found})])


def _runner(args: argparse.Namespace, *, deterministic: bool) -> ModelRunner:
    dtype, device = DTYPES[args.dtype], torch.device("cpu")
    fused = can_fuse(device, dtype, deterministic=deterministic)
    model = load_model(args.model, dtype, device, deterministic=deterministic, fused=fused)
    return ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS))


def compare(runners: tuple[ModelRunner, ModelRunner], step: Step, rounds: int) -> tuple[float, float, float]:
    """Return the median milliseconds of both, and the median of their ratios."""
    plain, other = (make_batch(runner, step) for runner in runners)
    return compare_batches(runners, (plain, other), rounds)


def compare_batches(
    runners: tuple[ModelRunner, ModelRunner], batches: tuple[StepBatch, StepBatch], rounds: int
) -> tuple[float, float, float]:
    """Return the same of runners that each have a batch of their own."""
    for runner, batch in zip(runners, batches, strict=True):
        runner.forward(batch)
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for kind in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            runners[kind].forward(batches[kind])
            took[kind].append((time.process_time() - began) * 1e3)
    ratios = [after / before for before, after in zip(*took, strict=True)]
    return statistics.median(took[0]), statistics.median(took[1]), statistics.median(ratios)
