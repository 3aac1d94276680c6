"""Where the time of a decode step goes, in an engine without a fleet.

Native layers count the time of their products and of their attention. Other linear layers and attention are
timed by hooks, and the forward pass around them. What a step takes beside its forward pass is spent on
scheduling, sampling and detokenising.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.cpu.engines.loads import KV_TOKENS, LARGEST_BATCH, Load
from benchmarks.decodes import decode, fixed_length, run_all
from engine.building.build import BuiltEngine, build
from engine.building.settings import EngineSettings
from engine.calibration.sweep import Sweep
from engine.core.report import StepReport
from engine.execution.model_runner import ModelRunner
from engine.model.attention.attention import CpuAttention
from engine.model.fusion.cpu_layers import NativeSequence, PackedLinear, PanelLinear
from engine.model.model import DTYPES
from engine.model.quantised.whole_linears import WholeLinear
from kernels.native.layers import Seconds
from scheduling.policies import DEFAULT

BLOCK_SIZE = 16
NUM_STEPS = 16
PARTS = ("linear products", "attention", "other ops", "outside the model")


@dataclass(slots=True)
class Spent:
    """Seconds since the engine was built. `layers` are those that native layers have counted."""

    now: float = 0.0
    forward: float = 0.0
    linear: float = 0.0
    attention: float = 0.0
    layers: Seconds = field(default_factory=Seconds, compare=False)

    def read(self) -> Spent:
        """Return what was spent until now."""
        linear, attention = self.linear + self.layers.products, self.attention + self.layers.attention
        return Spent(time.perf_counter(), self.forward, linear, attention)

    def since(self, before: Spent) -> tuple[float, ...]:
        """Return the seconds of each of PARTS since an earlier time; together they are all of it."""
        total, forward, linear, attention = (
            getattr(self, name) - getattr(before, name) for name in ("now", "forward", "linear", "attention")
        )
        return linear, attention, forward - linear - attention, total - forward


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of each of PARTS, medians over steps."""

    parts_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return sum(self.parts_s)

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(part / self.step_s for part in self.parts_s)


def engine_of(model: Path, dtype: str, token_budget: int) -> BuiltEngine:
    """Build an engine as a worker does, without measuring its steps."""
    settings = EngineSettings(
        model=model,
        dtype=DTYPES[dtype],
        device=torch.device("cpu"),
        block_size=BLOCK_SIZE,
        num_blocks=KV_TOKENS // BLOCK_SIZE,
        kv_memory_mb=None,
        max_num_seqs=LARGEST_BATCH,
        token_budget=token_budget,
        policy=DEFAULT,
    )
    return build(settings, measure=lambda _runner, _name: Sweep([]))


def measure_shares(engine: BuiltEngine, load: Load, prompts: Sequence[Sequence[int]]) -> Shares:
    """Decode the prompts, and time up to NUM_STEPS steps in which all sequences decode.

    Raises RuntimeError if there was none.
    """
    steps: list[tuple[float, ...]] = []
    with _timed(engine.runner) as spent:
        before = spent.read()

        def watch(report: StepReport) -> None:
            nonlocal before
            after = spent.read()
            if report.shape is not None and report.shape.num_decodes == load.num_prompts:
                steps.append(after.since(before))
            before = after

        # Outputs begin one after the other, and none ends before the last has its steps.
        output = 2 * load.num_prompts + NUM_STEPS + 2
        requests = [decode(tuple(prompt), fixed_length(output), is_salted=True) for prompt in prompts]
        run_all(engine.loop, iter([requests]), watch)
    # The first step may overlap with what came before it.
    timed = steps[1 : 1 + NUM_STEPS]
    if not timed:
        raise RuntimeError(f"no step decoded {load.num_prompts} sequences")
    return Shares(tuple(map(statistics.median, zip(*timed, strict=True))))


@contextmanager
def _timed(runner: ModelRunner) -> Iterator[Spent]:
    """Count the seconds of a runner's forward passes, of their linear layers and of their attention."""
    spent = Spent()
    own_forward, own_attend = runner.forward, CpuAttention._attend  # noqa: SLF001  (it has no other seam)
    runner.forward = _counted(spent, "forward", own_forward)  # type: ignore[method-assign]  # and back, below
    CpuAttention._attend = _counted(spent, "attention", own_attend)  # type: ignore[method-assign]  # noqa: SLF001
    modules = list(runner.model.module.modules())
    native = [module for module in modules if isinstance(module, NativeSequence)]
    for layers in native:
        layers.count_time(spent.layers)
    hooks = [hook for module in modules for hook in _hooks(spent, module)]
    try:
        yield spent
    finally:
        for layers in native:
            layers.count_time(None)
        runner.forward = own_forward  # type: ignore[method-assign]
        CpuAttention._attend = own_attend  # type: ignore[method-assign]  # noqa: SLF001
        for hook in hooks:
            hook.remove()


def _counted(spent: Spent, part: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return own(*args, **kwargs)
        finally:
            setattr(spent, part, getattr(spent, part) + time.perf_counter() - start_s)

    return counted


def _hooks(spent: Spent, module: nn.Module) -> Iterator[Any]:
    if not isinstance(module, nn.Linear | WholeLinear | PackedLinear | PanelLinear):
        return
    start_s = 0.0

    def before(*_: object) -> None:
        nonlocal start_s
        start_s = time.perf_counter()

    def after(*_: object) -> None:
        spent.linear += time.perf_counter() - start_s

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after)
