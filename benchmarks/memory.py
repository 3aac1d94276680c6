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
import itertools
import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.admission import EngineLimits
from engine.block_manager import BlockManager
from engine.commands import Command, Decode
from engine.kv_pool import KVPool
from engine.model import Model, load_model
from engine.model_runner import ModelRunner
from engine.report import StepReport
from engine.step_loop import StepLoop
from engine.sweep import sweep
from scheduling.cost_fit import fit
from scheduling.cost_model import CostModel
from scheduling.policies import DEFAULT, NAMES, by_name
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules

BLOCK_SIZE = 16
FORCED = 100.0
"""Bias of the end token: drawn as soon as it may be."""
WARM_UP = 200
"""Requests that have ended before steps count: until then lengths are not known well."""
QUEUE = 8
"""Requests that wait at any time."""


@dataclass
class Tally:
    """What the steps after the warm-up showed."""

    allocated: list[float] = field(default_factory=list)
    waste: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    preempted: int = 0
    finished: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, default=Path("demo_model"), metavar="PATH")
    add("--policy", default=DEFAULT, choices=NAMES)
    add("--num-blocks", type=int, default=1000, metavar="N", help=f"of {BLOCK_SIZE} tokens")
    add("--max-num-seqs", type=int, default=256, metavar="N")
    add("--steps", type=int, default=1500, metavar="N", help="counted ones")
    add("--output-median", type=int, default=128, metavar="TOKENS")
    add("--max-tokens", type=int, default=1024, metavar="TOKENS", help="what every request asks for")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="N")


def run(args: argparse.Namespace) -> int:
    """Prints a line per seed; 0 whatever they say."""
    model = load_model(args.model, torch.float32, torch.device("cpu"))
    cost = _costs(model, args.max_num_seqs)
    print(f"{args.policy}, {args.num_blocks} blocks of {BLOCK_SIZE}, outputs of median {args.output_median}")
    print(f"{'seed':>4} {'allocated':>9} {'p5':>6} {'running':>7} {'waste':>6} {'recomputed':>10}  preempted")
    for seed in args.seeds:
        tally = Load(model, cost, args, seed).run()
        lost = tally.recomputed_tokens / tally.computed_tokens
        fifth = statistics.quantiles(tally.allocated, n=20)[0]
        print(
            f"{seed:>4} {statistics.mean(tally.allocated):>9.1%} {fifth:>6.1%} "
            f"{statistics.mean(tally.running):>7.1f} {statistics.mean(tally.waste):>6.1f} "
            f"{lost:>10.2%} {tally.preempted:>4} of {tally.finished}"
        )
    return 0


class Load:
    """An engine with more to do than its pool has room for."""

    def __init__(self, model: Model, cost: CostModel, args: argparse.Namespace, seed: int) -> None:
        self._rng = random.Random(seed)
        self._args = args
        self._vocab = model.facts.vocab_size
        self._ends = model.facts.eos_token_ids
        self._handles = itertools.count(1)
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
        missing = QUEUE - self._num_waiting
        self._num_waiting += max(0, missing)
        return list(itertools.islice(self._requests(), max(0, missing)))

    def _requests(self) -> Iterator[Command]:
        while True:
            handle = next(self._handles)
            prompt = tuple(self._rng.randrange(self._vocab) for _ in range(self._length(64, 0.8, 512)))
            length = self._length(self._args.output_median, 0.6, self._args.max_tokens - 1)
            yield Decode(
                SequenceSpec(
                    handle=handle,
                    fence=Fence("benchmark", str(handle), 0, 0, 0, "", ""),
                    prompt_token_ids=prompt,
                    output_token_ids=(),
                    choices=(0,),
                    sampling=SamplingParams(temperature=0.0, logit_bias=((self._ends[0], FORCED),)),
                    stop=StopRules(max_tokens=self._args.max_tokens, min_tokens=length),
                )
            )

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
    cost = fit(sweep(runner, max_num_seqs=max_num_seqs, token_budget=256))
    assert cost is not None, "the sweep had too little to fit"
    return cost
