"""Steps with native ops beside the same steps in PyTorch alone, taking turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from benchmarks.costs.turns import compare
from benchmarks.cpu.floors import need_of
from engine.calibration.grid import Step
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch
from engine.model.model import DTYPES, Model, load_model
from kernels.native.ops import computes
from sim.reporting.progress import tracked
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cells

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 16, 2400
STEPS = {
    "1 decode at 290": Step(1, 290),
    "8 decodes at 290": Step(8, 290),
    "32 decodes at 290": Step(32, 290),
    "256 tokens of prompt": Step(0, 0, (0, 256)),
    "16 decodes at 290, 128 tokens": Step(16, 290, (128, 128)),
}


def section(model: Path, name: str, threads: int, rounds: int, seeds: Sequence[int]) -> Section:
    """Time every step, once per seed. Raises ValueError if no native ops were built."""
    dtype = DTYPES[name]
    if not computes(CPU, dtype):
        raise ValueError("no native ops for this processor; `python -m kernels.native.build` makes them")
    torch.set_num_threads(threads)
    with without_native_ops():
        own = TorchAlone(*_parts(load_model(model, dtype, CPU)))
    native = ModelRunner(*_parts(load_model(model, dtype, CPU, fused=True)))
    by_step: dict[str, list[tuple[float, float, float]]] = {step: [] for step in STEPS}
    for step in tracked([*STEPS] * len(seeds), "steps"):
        by_step[step].append(compare((own, native), STEPS[step], rounds))
    rows = [(step, *cells(figures)) for step, figures in by_step.items()]
    table = markdown(("step", "PyTorch alone, ms", "native ops, ms", "ratio"), rows)
    weights = need_of(model).read_weights * dtype.itemsize / 2**20
    method = (
        f"{model.name}, {name}, {weights:.0f} MiB of weights, {threads} threads; medians of {rounds} rounds, "
        f"measured {len(seeds)} times. Times are CPU times of all threads. Fusion {native.model.fusion}."
    )
    return Section("Native ops beside PyTorch alone", method, (), (table,), {"steps": by_step})


class TorchAlone(ModelRunner):
    """Runs a model as on a processor for which no native ops were built."""

    def forward(self, batch: StepBatch) -> Tensor:
        with without_native_ops():
            return super().forward(batch)


@contextmanager
def without_native_ops() -> Iterator[None]:
    with mock.patch("kernels.native.loader.library", return_value=None):
        yield


def _parts(model: Model) -> tuple[Model, KVPool]:
    return model, KVPool(model.block_layout(BLOCK_SIZE), NUM_BLOCKS)
