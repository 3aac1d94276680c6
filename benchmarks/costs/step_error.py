"""Measure the error of the cost model, beside the variation of identical steps.

    python -m benchmarks step-error --seeds 1,2,3,4,5

A worker's engine, without a fleet, runs acts of varied requests, and between them the same few requests again
and again. One model is fitted to the sweep and every other act, and judged by the rest. Another follows all
steps as a worker does, and each step is judged by the model published before it. The yardstick is the median
deviation of steps of identical shape from their own median, in the acts that judge: no model can predict a
step better than that.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.costs.real_steps import StepRecorder
from benchmarks.report import report
from runtime.process.event_loop import freeze_garbage
from scheduling.cost.cost_estimator import CostEstimator
from scheduling.cost.cost_fit import fit
from scheduling.cost_model import CostModel, Sample, StepShape
from sim.reporting.progress import tracked
from sim.reporting.section import Goal, Section, at_most, markdown
from worker.engine.engine import Engine
from worker.startup.build import build_engine
from worker.startup.flags import parse_config

REQUESTS_PER_ACT = 40
LONGEST_PROMPT = 900
LONGEST_OUTPUT = 100
REPEATED = (((100,) * 4, 12), ((200,), 6), ((16,) * 12, 8))
"""Prompts that arrive together, and how many tokens each then generates."""
ROUNDS = 3
MOST_BEYOND = 7.0
LEAST_COVERAGE, MOST_COVERAGE = 0.90, 0.98


@dataclass(frozen=True, slots=True)
class Act:
    varied: list[Sample]
    repeated: list[Sample]


@dataclass(frozen=True, slots=True)
class Result:
    """Shares of 1. Errors are medians of |actual / predicted - 1|."""

    steps: int
    repetition: float
    swept_error: float
    fitted_error: float
    fitted_coverage: float
    followed_error: float
    followed_coverage: float
    untrusted: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--acts", default=12, type=int, metavar="N", help="rounds of steps, half of them for judging (12)"
    )


def run(args: argparse.Namespace) -> int:
    """Run every seed on one engine."""
    config = parse_config([f"--model={args.model}", "--policy=chunked", "--threads=1"], "decode", 0)
    with tempfile.TemporaryDirectory() as nothing_kept:
        engine = build_engine(dataclasses.replace(config, cache=Path(nothing_kept)))
    freeze_garbage()
    StepRecorder(engine, 0).varied(REQUESTS_PER_ACT, LONGEST_PROMPT, LONGEST_OUTPUT)
    results = [judge(engine, perform(engine, seed, args.acts)) for seed in tracked(args.seeds, "step-error")]
    return report(args, [section(args.seeds, results, args.acts)])


def section(seeds: Sequence[int], results: Sequence[Result], num_acts: int) -> Section:
    """Return goals by the median over the seeds, and a row for each."""
    beyond = (100 * (result.fitted_error - result.repetition) for result in results)
    coverage = tuple(result.fitted_coverage for result in results)
    goals = (
        at_most("error of the fitted model above repetition's, in points", beyond, MOST_BEYOND, ".1f"),
        Goal("steps within the fitted q95, at least", coverage, LEAST_COVERAGE, spec=".1%"),
        at_most("steps within the fitted q95, at most", coverage, MOST_COVERAGE, ".1%"),
    )
    shares = [field.name for field in fields(Result)[1:]]
    rows = [
        (f"seed {seed}", str(result.steps), *(f"{getattr(result, name):.1%}" for name in shares))
        for seed, result in zip(seeds, results, strict=True)
    ]
    method = (
        f"{num_acts} acts of {REQUESTS_PER_ACT} requests, of which half judge; errors are medians of "
        "|actual / predicted - 1|, repetition is that of identical steps from their own median."
    )
    table = markdown(("", "steps", *(name.replace("_", " ") for name in shares)), rows)
    data = {"results": [dataclasses.asdict(result) for result in results]}
    return Section("Step times", method, goals, (table,), data)


def perform(engine: Engine, seed: int, num_acts: int) -> list[Act]:
    recorder = StepRecorder(engine, seed)
    acts = []
    for _ in range(num_acts):
        varied = recorder.varied(REQUESTS_PER_ACT, LONGEST_PROMPT, LONGEST_OUTPUT)
        rounds = [recorder.repeated(*prompts) for _ in range(ROUNDS) for prompts in REPEATED]
        acts.append(Act(varied, [step for steps in rounds for step in steps]))
    return acts


def judge(engine: Engine, acts: Sequence[Act]) -> Result:
    samples = [step for act in acts[::2] for step in act.varied]
    judges = [step for act in acts[1::2] for step in act.varied]
    fitted = fit([*engine.samples, *samples])
    assert fitted is not None
    followed = _follow(CostEstimator(engine.cost, engine.samples), acts)
    return Result(
        steps=sum(len(act.varied) for act in acts),
        repetition=repetition([step for act in acts[1::2] for step in act.repeated]),
        swept_error=_error((engine.cost, *step) for step in judges),
        fitted_error=_error((fitted, *step) for step in judges),
        fitted_coverage=_coverage([(fitted, *step) for step in judges]),
        followed_error=_error(followed),
        followed_coverage=_coverage(followed),
        untrusted=statistics.mean(not model.is_trusted for model, _, _ in followed),
    )


def repetition(steps: Sequence[Sample]) -> float:
    """Return the median deviation of steps from the median of the steps of the same shape."""
    alike: defaultdict[StepShape, list[float]] = defaultdict(list)
    for shape, seconds in steps:
        alike[shape].append(seconds)
    groups = [(times, statistics.median(times)) for times in alike.values() if len(times) > 1]
    return statistics.median(abs(seconds / middle - 1) for times, middle in groups for seconds in times)


Judged = tuple[CostModel, StepShape, float]


def _follow(estimator: CostEstimator, acts: Sequence[Act]) -> list[Judged]:
    """Return each varied step with the model published before it ran."""
    judged = []
    for act in acts:
        steps = [(True, *step) for step in act.varied] + [(False, *step) for step in act.repeated]
        for is_varied, shape, seconds in steps:
            if is_varied:
                judged.append((estimator.model, shape, seconds))
            estimator.observe(shape, seconds)
            if estimator.needs_fit and (fitted := fit(estimator.take_samples())):
                estimator.adopt(fitted)
    return judged


def _error(judged: Iterable[Judged]) -> float:
    return statistics.median(abs(seconds / model.predict(shape) - 1) for model, shape, seconds in judged)


def _coverage(judged: Sequence[Judged]) -> float:
    return statistics.mean(seconds <= model.predict_q95(shape) for model, shape, seconds in judged)
