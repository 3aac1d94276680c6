"""Measure what a second stage brings: the throughput of two stages, beside one process.

All serve the same loads with the step loop of a worker, in turns in random order: decodes, of which a batch
of equal prompts runs at once, and one long prompt. Times are wall-clock times, so nothing else should run on
this machine.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from benchmarks.settings import cpu_settings
from engine.build import build, follow_leader
from engine.calibration.sweep import Sweep
from engine.core.commands import Command, Decode
from engine.core.report import StepReport
from engine.execution.step_loop import StepLoop
from engine.group.links import Link
from engine.group.pipeline import Pipeline
from engine.model.parallel.stage import Stage
from engine.settings import EngineSettings
from reporting.progress import tracked
from scheduling.cost.cost_model import CostModel
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules
from worker.startup.group.followers import start_followers

CPU = torch.device("cpu")
LONG = 2048
MAX_SEQS = 64
VOCAB = 500
"""Token ids of prompts are below this, which every model's vocabulary exceeds."""
LOADS = {
    "8 decodes": (8, CONTEXT, 24),
    "32 decodes": (32, CONTEXT, 24),
    f"a prompt of {LONG} tokens": (1, LONG, 1),
}
"""Sequences, tokens of each prompt and of each output. Prompts are equal, so they are computed once."""
GOALS = {"32 decodes": 1.5, f"a prompt of {LONG} tokens": 1.5}
"""How many times faster two cores should be than one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_flags(parser, "stages", "stages, each a process of one thread", rounds=5)


def run(args: argparse.Namespace) -> int:
    """Time every load on all contenders, once per seed."""
    torch.set_num_threads(1)  # forked processes could not use threads that this one has started
    path = random_model() if args.model is None else args.model
    flag = f"--pipeline-parallel {args.stages}"
    followers = start_followers(args.stages, partial(_follow, args, path), flag)
    try:
        whole = build(_settings(args, path, None), _measure_nothing).loop
        engine = build(_settings(args, path, 0), group=Pipeline(followers.links))
        staged, costs = engine.loop, _Costs(engine.cost)
        loops = ((whole, 1, _ignore), (whole, args.stages, _ignore), (staged, 1, costs.take))
        found: dict[str, list[Figures]] = {name: [] for name in LOADS}
        works = [(name, seed) for seed in args.seeds for name in LOADS]
        for name, seed in tracked(works, "loads"):
            rng, load = random.Random(seed), _Load(*LOADS[name])
            contenders = [
                (partial(_seconds, loop, load, rng, take), threads) for loop, threads, take in loops
            ]
            found[name].append(compare(contenders, args.rounds, rng))
    finally:
        followers.end()
    method = (
        f"{path.name}, {args.dtype}, a thread in each stage. Decodes: milliseconds for a token of every "
        f"sequence, contexts of {CONTEXT} tokens. Prompt: milliseconds to its first token, in chunks of "
        f"{TOKENS}. Medians of {args.rounds} rounds, measured {len(args.seeds)} times. Wall-clock times. "
        f"The costs measured at the start of the stages predict {statistics.median(costs.ratios):.2f} times "
        f"what their steps took, by the median of {len(costs.ratios)}."
    )
    title, last = "Pipeline parallelism, by load", f"{args.stages} stages"
    return report(args, [section_of(title, method, found, GOALS, last)])


def _follow(args: argparse.Namespace, path: Path, part: tuple[int, int], links: Sequence[Link]) -> int:
    rank, _ = part
    follow_leader(_settings(args, path, rank), links[0])
    return 0


def _settings(args: argparse.Namespace, path: Path, rank: int | None) -> EngineSettings:
    """Return the settings of one stage's process; of the only one if `rank` is None."""
    usual = cpu_settings(path, args.dtype, POOL_TOKENS, max_num_seqs=MAX_SEQS)
    stage = None if rank is None else Stage(rank, args.stages)
    return replace(usual, token_budget=TOKENS, policy="chunked", stage=stage)


def _measure_nothing(_runner: object, _name: str) -> Sweep:
    """Leave steps to the token budget: no request has a promise."""
    return Sweep([], is_whole=False)


class _Costs:
    """How many times longer the steps of the stages were predicted to take than they took."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self.ratios: list[float] = []

    def take(self, told: StepReport) -> None:
        if told.shape is not None:
            self.ratios.append(self._cost.predict(told.shape) / told.step_seconds)


@dataclass(frozen=True, slots=True)
class _Load:
    num_seqs: int
    prompt_tokens: int
    output_tokens: int

    def commands(self, salt: bytes) -> list[Command]:
        """Return what starts the sequences; with another salt, nothing is cached."""
        prompt = [place * 7 % VOCAB for place in range(self.prompt_tokens)]
        return [
            Decode(
                SequenceSpec(
                    handle=handle,
                    fence=Fence("t", f"r{handle}", 0, 0, 0, "s", "s"),
                    prompt_token_ids=prompt,
                    output_token_ids=(),
                    choices=(0,),
                    sampling=SamplingParams(temperature=0.0),
                    stop=StopRules(max_tokens=self.output_tokens, ignore_eos=True),
                    cache_salt=salt,
                )
            )
            for handle in range(1, self.num_seqs + 1)
        ]


def _ignore(_told: StepReport) -> None:
    """Take nothing."""


def _seconds(loop: StepLoop, load: _Load, rng: random.Random, take: Callable[[StepReport], None]) -> float:
    """Return the seconds to the first token of a single sequence, or for a token of each of several.

    The latter are counted while all of them run. `take` is called with each report.
    """
    arrivals: list[tuple[float, list[int]]] = []

    def emit(told: StepReport) -> None:
        assert not told.failures, told.failures
        take(told)
        arrivals.append((time.perf_counter(), list(told.tokens.handles)))

    inbox = [load.commands(rng.randbytes(8))]
    waits: list[float] = []

    def drain(timeout_s: float) -> list[Command]:
        waits.append(timeout_s)
        return inbox.pop() if inbox else []

    began_s = time.perf_counter()
    loop.run(drain, emit, lambda: bool(waits) and waits[-1] == math.inf)
    counts = dict.fromkeys(range(1, load.num_seqs + 1), 0)
    window: list[tuple[float, int]] = []  # when tokens came while all sequences had one, and none its last
    for at_s, handles in arrivals:
        for handle in handles:
            counts[handle] += 1
        if load.num_seqs == 1 and handles:
            return at_s - began_s
        fewest, most = min(counts.values()), max(counts.values())
        if handles and 0 < fewest <= most < load.output_tokens:
            window.append((at_s, len(handles)))
    num_tokens = sum(number for _, number in window[1:])
    return (window[-1][0] - window[0][0]) * load.num_seqs / num_tokens
