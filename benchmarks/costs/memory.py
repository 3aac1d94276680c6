"""How much of the KV pool is at work under load, and how much work is lost to preemption.

The engine alone, without a fleet, over a pool that is too small for everybody who waits. Outputs end where
the model's end token is forced, far from max_tokens, so that the engine has to expect lengths, as it has to
of real ones. After a warm-up each step is looked at:

  allocated   blocks that sequences reference, of the pool's
  waste       places in those blocks that hold no token, per running sequence (steps without prefill)
  preempted   tokens computed again, of all that were computed; and sequences that gave up their blocks
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from benchmarks.decodes import GREEDY, decode
from benchmarks.report import report
from engine.calibration.sweep import sweep
from engine.core.admission import EngineLimits
from engine.core.commands import Command
from engine.core.memory.block_manager import BlockManager
from engine.core.report import StepReport
from engine.execution.model_runner import ModelRunner
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.model import Model, load_model
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Goal, Section, at_most, markdown
from scheduling.cost.cost_fit import fit
from scheduling.cost.cost_model import CostModel
from scheduling.policies import DEFAULT, NAMES, by_name
from scheduling.request import StopRules

BLOCK_SIZE = 16
FORCED = 100.0
"""Bias of the end token: it is drawn as soon as it is allowed."""
WARM_UP = 200
"""Requests that must end before steps count: until then the engine knows too few output lengths."""
LEAST_ALLOCATED = 0.9
MOST_LOST = 0.02
QUEUE = 8
"""Number of requests that always wait."""


@dataclass
class Tally:
    """Figures of the steps after the warm-up."""

    allocated: list[float] = field(default_factory=list)
    waste: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    preempted: int = 0
    finished: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--policy", default=DEFAULT, choices=NAMES, help=f"the policy ({DEFAULT})")
    add("--num-blocks", type=int, default=1000, metavar="N", help=f"KV blocks of {BLOCK_SIZE} tokens (1000)")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="the most sequences of a batch (256)")
    add("--steps", type=int, default=1500, metavar="N", help="steps that count (1500)")
    add("--output-median", type=int, default=128, metavar="TOKENS", help="the median length of outputs (128)")
    add("--max-tokens", type=int, default=1024, metavar="TOKENS", help="max_tokens of every request (1024)")


def run(args: argparse.Namespace) -> int:
    """Run every seed on a fresh pool."""
    model = load_model(args.model, torch.float32, torch.device("cpu"))
    cost = _costs(model, args.max_num_seqs)
    tallies = []
    with progress_bars() as progress:
        for seed in args.seeds:
            bar = progress.add_task(f"memory, seed {seed}", total=args.steps)
            tallies.append(Load(model, cost, args, seed, partial(progress.advance, bar)).run())
    return report(args, [section(args, tallies)])


def section(args: argparse.Namespace, tallies: Sequence[Tally]) -> Section:
    """Return goals, and a row for each seed."""
    allocated = tuple(statistics.mean(tally.allocated) for tally in tallies)
    waste = tuple(statistics.mean(tally.waste) for tally in tallies)
    lost = tuple(tally.recomputed_tokens / tally.computed_tokens for tally in tallies)
    goals = (
        Goal("share of the pool's blocks that sequences hold", allocated, LEAST_ALLOCATED, spec=".1%"),
        at_most("places without a token, per sequence", waste, BLOCK_SIZE, ".1f"),
        at_most("tokens computed again, of all computed", lost, MOST_LOST, ".2%"),
    )
    rows = [
        (
            f"seed {seed}",
            f"{allocated[place]:.1%}",
            f"{quantile(tally.allocated, 0.05):.1%}",
            f"{statistics.mean(tally.running):.1f}",
            f"{waste[place]:.1f}",
            f"{lost[place]:.2%}",
            f"{tally.preempted} of {tally.finished}",
        )
        for place, (seed, tally) in enumerate(zip(args.seeds, tallies, strict=True))
    ]
    header = ("", "allocated", "5 %", "running", "waste", "recomputed", "preempted sequences")
    method = (
        f"Policy {args.policy}, {args.num_blocks} blocks of {BLOCK_SIZE} tokens, {args.steps} steps after "
        f"{WARM_UP} requests; outputs of median {args.output_median} with a limit of {args.max_tokens}. "
        "Waste is the free room in the last block of each sequence: less than a block."
    )
    data = {"seeds": [dataclasses.asdict(tally) for tally in tallies]}
    return Section("Memory", method, goals, (markdown(header, rows),), data)


class Load:
    """An engine with more requests than its pool has room for."""

    def __init__(
        self, model: Model, cost: CostModel, args: argparse.Namespace, seed: int, counted: Callable[[], None]
    ) -> None:
        self._counted = counted
        self._rng = random.Random(seed)
        self._args = args
        self._vocab = model.facts.vocab_size
        self._ends = model.facts.eos_token_ids

        self._num_waiting = 0
        self._num_finished = 0
        self._tally = Tally()
        self._blocks = BlockManager(args.num_blocks, BLOCK_SIZE)
        pool = KVPool(model.block_layout(BLOCK_SIZE), args.num_blocks)
        limits = EngineLimits(
            self._vocab, model.facts.max_context, args.max_num_seqs, args.max_num_seqs + 256, self._ends
        )
        self._loop = StepLoop(
            ModelRunner(model, pool),
            pool.tensor,
            self._blocks,
            limits=limits,
            fingerprint="memory",
            detokenizer=None,
            policy=by_name(args.policy),
            cost=cost,
        )

    def run(self) -> Tally:
        self._loop.run(self._drain, self._emit, lambda: len(self._tally.allocated) >= self._args.steps)
        return self._tally

    def _drain(self, timeout_s: float) -> list[Command]:
        missing = max(0, QUEUE - self._num_waiting)
        self._num_waiting += missing
        return [self._request() for _ in range(missing)]

    def _request(self) -> Command:
        prompt = tuple(self._rng.randrange(self._vocab) for _ in range(self._length(64, 0.8, 512)))
        length = self._length(self._args.output_median, 0.6, self._args.max_tokens - 1)
        ends_early = replace(GREEDY, logit_bias=((self._ends[0], FORCED),))
        return decode(prompt, StopRules(self._args.max_tokens, min_tokens=length), ends_early)

    def _length(self, median: float, sigma: float, most: int) -> int:
        return max(1, min(most, round(self._rng.lognormvariate(math.log(median), sigma))))

    def _emit(self, report: StepReport) -> None:
        assert not report.failures, report.failures
        self._num_waiting -= len(report.prefilled)
        if report.shape is None:
            return
        self._num_finished += len(report.freed)
        if self._num_finished >= WARM_UP:
            self._count(report)

    def _count(self, report: StepReport) -> None:
        tally, shape, load = self._tally, report.shape, report.load
        assert shape is not None
        num_used = self._blocks.num_blocks - self._blocks.num_unreferenced_blocks
        tally.allocated.append(num_used / self._blocks.num_blocks)
        tally.running.append(load.running)
        self._counted()
        tally.computed_tokens += shape.num_tokens
        tally.recomputed_tokens += report.recomputed_tokens
        tally.preempted += len(report.preempted)
        tally.finished += len(report.freed)
        if shape.num_tokens == shape.num_decodes and load.running:
            # The newest token of each is not written yet.
            num_written = load.context_tokens - load.running
            tally.waste.append((num_used * BLOCK_SIZE - num_written) / load.running)


def _costs(model: Model, max_num_seqs: int) -> CostModel:
    runner = ModelRunner(model, KVPool(model.block_layout(BLOCK_SIZE), 256))
    cost = fit(sweep(runner, max_num_seqs=max_num_seqs, token_budget=256).samples)
    assert cost is not None, "the sweep had too little to fit"
    return cost
