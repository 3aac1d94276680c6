"""Simulate how long the stages of a pipeline are idle under each policy, and what that costs.

Bubbles are the share of the stages' time in which one is idle between two steps of a busy period
(`sim/bubbles.py` has the definition). They are measured while requests arrive, without the first tenth of
that time. A worker has a device for each stage, and as many requests for each device as one without stages.
Step rules are compared on equal terms: every request is accepted and bound to the worker at its arrival.
`slack` with its own admission comes beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.claims.cells import cell, estimate
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Arm, Case, profile, spec_of
from benchmarks.claims.strict_itl import STRICT_RATIO, holds
from benchmarks.flags import number, numbers, whole_numbers
from benchmarks.report import report
from reporting.section import Goal, Section, at_most, ratios, table
from reporting.tables import cell as in_words
from scheduling.policies.policy import Policy
from scheduling.policies.slack import SLACK
from sim.commands.capacity import references
from sim.metrics import measure
from sim.result import WARMUP_SHARE
from sim.simulation import run as simulate
from sim.workload import Promises, sample
from workloads.shapes import DEFAULT_CAPS

STAGES = (2, 4, 8)
LOADS = (0.9, 1.3)
"""Shares of what the devices carry by arithmetic. Above 1, prompts always wait."""
SPAN_S = 20.0
TPOT_RATIO, TTFT_RATIO = 2.5, 25.0
CHUNK_TOKENS = 512
"""The smaller of Sarathi-Serve's budgets, which keeps the pace asked for here."""
RULE_ALONE = replace(SLACK, name="slack, all accepted", promises=False, binds_at_arrival=True)
POLICIES: tuple[str | Policy, ...] = ("prefill_first", "orca", "chunked", RULE_ALONE, "slack")
GOAL_WORKLOAD, GOAL_STAGES, MOST_BUBBLES = "mixed", 4, 0.05
PAPER_BUBBLES, PAPER_THROUGHPUT = 6.29, 1.91
"""SARATHI (2023), GPT-3 with 8 stages: `orca` has so many times its bubbles, and it has so many times the
throughput of `orca`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy under one load."""

    workload: str
    num_stages: int
    load: float
    policy: str


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run."""

    bubbles: float
    without_scatter: float
    """Bubbles if every step takes exactly what the cost model predicts."""
    tokens_per_s: float
    """Prompt and output tokens computed, for each device."""
    good: float
    """The share of requests that met TTFT and TPOT."""


def arm_of(policy: str | Policy, num_stages: int) -> Arm:
    """Return the arm of a policy on a worker with so many stages."""
    budget = CHUNK_TOKENS if policy == "chunked" else None
    return Arm(policy, budget, num_stages=num_stages)


def play(case: Case) -> Run:
    """Simulate a case, and again without scatter."""
    spec = replace(spec_of(case), drain_s=0.0)
    first_s, result = WARMUP_SHARE * case.span_s, simulate(spec)
    (worker,) = result.workers
    (exact,) = simulate(replace(spec, noise=0.0)).workers
    assert worker.pipeline is not None
    assert exact.pipeline is not None
    tokens = worker.chunk_tokens + worker.decode_tokens
    return Run(
        worker.pipeline.bubble_share(first_s),
        exact.pipeline.bubble_share(first_s),
        tokens / result.ended_s / case.arm.num_stages,
        measure(result).good_share,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--stages", type=whole_numbers, default=list(STAGES), metavar="N,N", help="pipeline stages (2,4,8)")
    add("--workloads", nargs="+", choices=sorted(DEFAULT_CAPS), default=["mixed"], help="workloads (mixed)")
    add("--loads", type=numbers, default=list(LOADS), metavar="X,X", help="of the capacity (0.9,1.3)")
    add("--span-s", type=number, default=SPAN_S, metavar="S", help="time over which requests arrive (20)")
    add("--capacity", action="store_true", help="find the highest rates under a limit on every gap as well")


def run(args: argparse.Namespace) -> int:
    """Measure all cells with all seeds; raise ValueError for a worker without several stages."""
    if min(args.stages) < 2:
        raise ValueError(f"stages is {min(args.stages)}; accepted: numbers from 2")
    settings = Settings(tuple(args.seeds), args.span_s)
    return report(args, _sections(args, settings))


def _sections(args: argparse.Namespace, settings: Settings) -> Iterator[Section]:
    with Lab(settings) as lab:
        for workload in args.workloads:
            yield _bubbles(lab, workload, args.stages, args.loads)
            if args.capacity:
                yield _capacity(lab, workload, args.stages)


def _bubbles(lab: Lab, workload: str, stages: Sequence[int], loads: Sequence[float]) -> Section:
    promises = cell(workload, TPOT_RATIO, TTFT_RATIO).promises
    cases = {}
    for num_stages in stages:
        for load in loads:
            rate = load * num_stages * estimate(workload, promises.tpot_ms)
            for policy in POLICIES:
                arm = arm_of(policy, num_stages)
                key = Cell(workload, num_stages, load, arm.name)
                cases[key] = Case(arm, workload, rate, promises)
    found = lab.judge("pipelines", cases, play)
    return section(found, lab.settings, promises)


def section(found: Mapping[Cell, Sequence[Run]], settings: Settings, promises: Promises) -> Section:
    """Return goals and a table."""
    (workload,) = {key.workload for key in found}

    def figures(key: Cell, read: Callable[[Run], float]) -> tuple[float, ...]:
        return tuple(map(read, found[key]))

    def by_orca(key: Cell, read: Callable[[Run], float]) -> str:
        return in_words(ratios(figures(replace(key, policy="orca"), read), figures(key, read)))

    columns: dict[str, Callable[[Cell], str]] = {
        "stages": lambda key: str(key.num_stages),
        "load": lambda key: f"{key.load:g} ×",
        "policy": lambda key: key.policy,
        "bubbles, %": lambda key: in_words(figures(key, lambda run: run.bubbles), 100, ".1f"),
        "without scatter": lambda key: in_words(figures(key, lambda run: run.without_scatter), 100, ".1f"),
        "bubbles of orca, by these": lambda key: by_orca(key, lambda run: run.bubbles),
        "tokens/s for each device": lambda key: in_words(
            figures(key, lambda run: run.tokens_per_s), 1, ".0f"
        ),
        "good, %": lambda key: in_words(figures(key, lambda run: run.good), 100, ".0f"),
    }
    method = (
        f"One worker, {workload}, {settings.words}; TTFT {promises.ttft_ms} ms, TPOT {promises.tpot_ms} ms. "
        f"`chunked` computes {CHUNK_TOKENS} tokens a step. Without scatter, steps last as predicted."
    )
    goals = tuple(_goals(found))
    return Section(f"pipelines: bubbles on {workload}", method, goals, (table(found, columns),))


def _goals(found: Mapping[Cell, Sequence[Run]]) -> Iterator[Goal]:
    """Yield the goals of the cells in which prompts always wait."""
    for key, runs in found.items():
        if key.load < 1 or key.workload != GOAL_WORKLOAD or not key.policy.startswith(("chunked", "slack")):
            continue
        orca = found[replace(key, policy="orca")]
        where = f"{key.num_stages} stages, {key.load:g} × capacity, {key.policy}"
        if key.num_stages == GOAL_STAGES:
            yield at_most(f"{where}: bubbles", [run.bubbles for run in runs], MOST_BUBBLES, ".3f")
        bubbles = ratios([run.bubbles for run in orca], [run.bubbles for run in runs])
        yield Goal(f"{where}: bubbles of orca, by its own", bubbles, PAPER_BUBBLES)
        tokens = ratios([run.tokens_per_s for run in runs], [run.tokens_per_s for run in orca])
        yield Goal(f"{where}: tokens/s, by orca's", tokens, PAPER_THROUGHPUT)


def _capacity(lab: Lab, workload: str, stages: Sequence[int]) -> Section:
    """Find the highest rate at which P99 of all gaps is within a strict limit, as `strict_itl` does."""
    itl_ms = round(STRICT_RATIO * references(profile(), sample(workload, 1.0), 1.0).decode_step_s * 1000)
    cases = {}
    for num_stages in stages:
        guess = 0.5 * num_stages * estimate(workload, itl_ms)
        for policy in POLICIES:
            arm = arm_of(policy, num_stages)
            cases[num_stages, arm.name] = Case(arm, workload, guess, Promises(itl_ms=itl_ms))
    found = lab.capacities("pipelines", cases, holds)

    def by_first(key: tuple[int, str]) -> str:
        return in_words(ratios(found[key], found[key[0], "prefill_first"]))

    columns: dict[str, Callable[[tuple[int, str]], str]] = {
        "stages": lambda key: str(key[0]),
        "policy": lambda key: key[1],
        "capacity, 1/s for each device": lambda key: in_words([rate / key[0] for rate in found[key]]),
        "by prefill_first": by_first,
    }
    method = (
        f"One worker, {lab.settings.words}. Carried: as in `claims strict_itl`, with P99 of gaps ≤ "
        f"{itl_ms} ms ({STRICT_RATIO:g} D). Sarathi-Serve reports up to 5.6 for Falcon-180B on two stages."
    )
    return Section(f"pipelines: capacity on {workload}", method, (), (table(found, columns),))
