"""Measure steps on a CPU with native ops beside the same steps in PyTorch alone, taking turns.

Times are CPU times, of all threads. The rate at which this machine reads memory is measured first: a decode
reads every weight once, so no step of decodes can be shorter than the bytes of the weights at this rate.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.costs.deterministic import BLOCK_SIZE, NUM_BLOCKS, columns_of, compare
from benchmarks.flags import count
from benchmarks.report import report
from engine.calibration.sweep import Step
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.model import DTYPES, Model, load_model
from kernels.native.loader import computes
from reporting.progress import tracked
from reporting.section import Section, markdown
from reporting.tables import cell

CPU = torch.device("cpu")
READ_BYTES = 256 << 20
STEPS = {
    "1 decode at 290": Step(1, 290),
    "8 decodes at 290": Step(8, 290),
    "32 decodes at 290": Step(32, 290),
    "256 tokens of prompt": Step(0, 0, (0, 256)),
    "16 decodes at 290, 128 tokens": Step(16, 290, (128, 128)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="the type of the weights (float32)",
    )
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads of the worker (1)")
    parser.add_argument("--rounds", type=count, default=20, metavar="N", help="rounds of each step (20)")


def run(args: argparse.Namespace) -> int:
    """Time every step, once per seed. Raises ValueError if no native ops were built."""
    dtype = DTYPES[args.dtype]
    if not computes(CPU, dtype):
        raise ValueError("no native ops for this processor; `python -m kernels.native.build` makes them")
    torch.set_num_threads(args.threads)
    rates = [_read_rate() for _ in args.seeds]
    runners = tuple(_runner(load_model(args.model, dtype, CPU, fused=fused)) for fused in (False, True))
    own, native = runners
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in STEPS}
    for name in tracked([*STEPS] * len(args.seeds), "steps"):
        found[name].append(compare((own, native), STEPS[name], args.rounds))
    rows = [(name, *columns_of(figures)) for name, figures in found.items()]
    table = markdown(("step", "PyTorch alone, ms", "native ops, ms", "ratio"), rows)
    weights = sum(parameter.nbytes for parameter in own.model.module.parameters()) / 2**20
    method = (
        f"{args.model.name}, {args.dtype}, {weights:.0f} MiB of weights, {args.threads} threads; medians of "
        f"{args.rounds} rounds, measured {len(args.seeds)} times. Fusion {native.model.fusion}. The machine "
        f"reads {cell(rates, spec='.1f')} GB/s."
    )
    data = {"steps": found, "read_gb_per_s": rates}
    return report(args, [Section("Steps on a CPU", method, (), (table,), data)])


def _runner(model: Model) -> ModelRunner:
    return ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS))


def _read_rate() -> float:
    """Return how fast all threads read memory, in GB/s: the median of five passes."""
    numbers = torch.ones(READ_BYTES // 4)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        numbers.sum()
        took.append(time.perf_counter() - began)
    return READ_BYTES / statistics.median(took) / 1e9
