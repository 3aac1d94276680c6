"""Measure what LoRA adapters cost: steps whose rows have none, one, or each an adapter of its own.

The same steps are computed by a model without adapters and by one with them, taking turns. Times are CPU
times of all threads; ratios are of steps that followed each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.costs.deterministic import BLOCK_SIZE, compare_batches
from benchmarks.cpu.random_model import random_model
from benchmarks.flags import count
from benchmarks.report import report
from engine.build import can_fuse
from engine.calibration.grid import Step
from engine.calibration.sweep import make_batch
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.adapters.attaching import linear_sizes
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.adapters.grouping import NO_ADAPTER, adapter_rows
from engine.model.model import DTYPES, load_model
from engine.model.step_batch import StepBatch
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cells

CPU = torch.device("cpu")
CONTEXT = 290
NUM_BLOCKS = 3000
TARGETS: Mapping[str, tuple[str, ...]] = {
    "query and value": ("q_proj", "v_proj"),
    "all linear layers": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
BOUND, FREE = 1.25, 1.02
"""How much longer a step may last with all adapters, and with none in its rows."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step, and how many adapters its sequences share among them."""

    step: Step
    num_adapters: int

    def __str__(self) -> str:
        step = self.step
        tokens = f"{step.num_decodes} decodes" if step.chunk is None else f"{step.chunk[1]} tokens of prompt"
        return f"{tokens}, {self.num_adapters} adapter{'' if self.num_adapters == 1 else 's'}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of the weights (bfloat16)")
    add("--threads", type=count, default=2, metavar="N", help="threads of the worker (2)")
    add("--adapters", type=count, default=32, metavar="N", help="adapters that are loaded (32)")
    add("--rank", type=count, default=16, metavar="R", help="rank of the adapters (16)")
    add("--rounds", type=count, default=20, metavar="N", help="rounds of each step (20)")
    add("--model", type=Path, metavar="PATH", help="the checkpoint (a random one of 200 million weights)")


def run(args: argparse.Namespace) -> int:
    """Time every step for each set of adapted layers, once per seed."""
    torch.set_num_threads(args.threads)
    path = random_model() if args.model is None else args.model
    num = args.adapters
    works = [
        Work(Step(num, CONTEXT), 0),
        Work(Step(num, CONTEXT), 1),
        Work(Step(num, CONTEXT), num),
        Work(Step(2 * num, CONTEXT), num),
        Work(Step(0, 0, (0, 256)), 1),
    ]
    plain = _runner(args, path, ())
    found: dict[str, list[tuple[float, float, float]]] = {}
    goals: list[Goal] = []
    for title, targets in TARGETS.items():
        adapted = _runner(args, path, _adapters(path, targets, num, args.rank))
        figures: dict[str, list[tuple[float, float, float]]] = {str(work): [] for work in works}
        for work in tracked(works * len(args.seeds), f"steps, {title}"):
            figures[str(work)].append(_compare((plain, adapted), work, args.rounds))
        found |= {f"{title}: {work}": each for work, each in figures.items()}
        goals += [
            Goal(f"{title}: {work}, with / without", _ratios(figures[str(work)]), bound, at_least=False)
            for work, bound in ((works[0], FREE), (works[2], BOUND))
        ]
    rows = [(name, *cells(figures)) for name, figures in found.items()]
    table = markdown(("adapted layers: step", "without adapters, ms", "with, ms", "ratio"), rows)
    method = (
        f"{path.name}, {args.dtype}, {args.threads} threads; {num} adapters of rank {args.rank}, contexts of "
        f"{CONTEXT} tokens; medians of {args.rounds} rounds, measured {len(args.seeds)} times. Times are CPU "
        "times of all threads."
    )
    return report(args, [Section("LoRA adapters, by step", method, tuple(goals), (table,), {"steps": found})])


def _ratios(figures: Sequence[tuple[float, float, float]]) -> tuple[float, ...]:
    return tuple(ratio for _, _, ratio in figures)


def _runner(args: argparse.Namespace, path: Path, adapters: Sequence[AdapterFiles]) -> ModelRunner:
    dtype = DTYPES[args.dtype]
    fused = can_fuse(CPU, dtype, deterministic=False)
    model = load_model(path, dtype, CPU, fused=fused, adapters=adapters)
    return ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS))


def _adapters(path: Path, targets: Sequence[str], num: int, rank: int) -> list[AdapterFiles]:
    """Return random adapters for the linear layers with these names."""
    library: Any = transformers
    with torch.device("meta"):
        module = library.AutoModelForCausalLM.from_config(library.AutoConfig.from_pretrained(path))
    sizes = {name: size for name, size in linear_sizes(module).items() if name.rpartition(".")[2] in targets}
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.02

    return [
        AdapterFiles(
            name=f"adapter-{number}",
            path=path,
            digest=f"{number:032x}",
            rank=rank,
            scale=1.0,
            matrices={
                name: (matrix(rank, inputs), matrix(outputs, rank))
                for name, (inputs, outputs) in sizes.items()
            },
        )
        for number in range(num)
    ]


def _compare(runners: tuple[ModelRunner, ModelRunner], work: Work, rounds: int) -> tuple[float, float, float]:
    """Return the median milliseconds without and with adapters, and the median of their ratios."""
    plain, adapted = (make_batch(runner, work.step) for runner in runners)
    return compare_batches(runners, (plain, _with_adapters(adapted, work.num_adapters)), rounds)


def _with_adapters(batch: StepBatch, num: int) -> StepBatch:
    """Return the batch with its sequences' adapters, in turns."""
    lengths = np.diff(batch.cu_seqlens_q.numpy())
    places = np.arange(len(lengths))
    slots = places % num if num else np.full(len(lengths), NO_ADAPTER)
    return replace(batch, adapters=adapter_rows(np.repeat(slots, lengths), CPU))
