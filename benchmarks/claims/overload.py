"""Measure goodput beyond the peak, its spread over prompt lengths, and how many promises are kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.claims.runs.cells import cell, estimate
from benchmarks.claims.runs.play import Arm, Case, Played, good, play, profile
from benchmarks.claims.runs.search import highest
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown, ratios
from reporting.tables import cell as in_words
from sim.workload import Promises

WORKLOADS = ("chat", "summarise", "mixed")
TPOT_RATIO, TTFT_RATIO = 2.5, 10.0
LOADS = (0.8, 1.0, 1.2, 1.5, 2.0)
"""Offered loads as multiples of the capacity."""
OVERLOADS = (1.5, 2.0)
SLACK, FCFS = Arm("slack"), Arm("chunked", 512)
GOOD_AT_CAPACITY = 0.9
DECILES = 10


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run."""

    requests_per_s: float
    tokens_per_s: float
    """Prompt and output tokens of good requests."""
    kept: float
    """The share of promised requests that were good; 1 without promises."""
    refused: float
    good_share: float
    deciles: tuple[float, ...]
    """The share of good requests in each tenth of the requests by prompt length."""


def figures(played: Played, promises: Promises) -> Figures:
    """Compute the figures of a run."""
    met = good(played, promises)
    tokens = float((played.prompt + played.output)[met].sum())
    parts = np.array_split(met[np.argsort(played.prompt, kind="stable")], DECILES)
    return Figures(
        requests_per_s=float(met.sum()) / played.span_s,
        tokens_per_s=tokens / played.span_s,
        kept=float(met[played.promised].mean()) if played.promised.any() else 1.0,
        refused=float(played.refused.mean()),
        good_share=float(met.mean()),
        deciles=tuple(float(part.mean()) for part in parts),
    )


def _figures(case: Case) -> Figures:
    return figures(play(case), case.promises)


def _capacity(workload: str, promises: Promises, seed: int, settings: Settings) -> float:
    def holds(rate: float) -> bool:
        case = Case(SLACK, workload, rate, seed, settings.span_s, promises)
        return _figures(case).good_share >= GOOD_AT_CAPACITY

    guess = 0.8 * estimate(profile(), workload, promises.tpot_ms)
    return highest(holds, guess, precision=settings.precision)


def measure(workers: Workers, settings: Settings) -> Section:
    """Find the capacity by bisection (median over the seeds), then run both arms at multiples of it."""
    promises = {name: cell(profile(), name, TPOT_RATIO, TTFT_RATIO).promises for name in WORKLOADS}
    rates = workers.per_seed(
        "overload, capacity",
        WORKLOADS,
        settings.seeds,
        lambda name, seed: partial(_capacity, name, promises[name], seed, settings),
    )
    capacities = {name: statistics.median(found) for name, found in rates.items()}
    carried = [name for name in WORKLOADS if capacities[name] > 0]

    def task(key: tuple[str, Arm, float], seed: int) -> Callable[[], Figures]:
        name, arm, load = key
        rate = load * capacities[name]
        return partial(_figures, Case(arm, name, rate, seed, settings.span_s, promises[name]))

    keys = [(name, arm, load) for name in carried for arm in (SLACK, FCFS) for load in LOADS]
    return section(workers.per_seed("overload", keys, settings.seeds, task), capacities, settings)


Runs = Mapping[tuple[str, Arm, float], Sequence[Figures]]


def section(runs: Runs, capacities: Mapping[str, float], settings: Settings) -> Section:
    """Return goals and tables."""
    goals = [goal for name in WORKLOADS if (name, SLACK, LOADS[0]) in runs for goal in _goals(runs, name)]
    method = (
        f"One worker, {settings.words}; TPOT {TPOT_RATIO:g} D, "
        f"TTFT {TTFT_RATIO:g} × the unloaded median prompt. Capacity of slack, {GOOD_AT_CAPACITY:.0%} good: "
        + ", ".join(f"{name} {rate:.2f}/s" for name, rate in capacities.items())
        + ". The peak is the best of the loads up to that one, seed by seed."
    )
    return Section("overload: past the peak", method, tuple(goals), (_loads(runs), _deciles(runs)))


def _goals(runs: Runs, name: str) -> list[Goal]:
    goals = []
    for label, read in (("requests", _requests), ("tokens", _tokens)):
        for load in OVERLOADS:
            until = [[read(run) for run in runs[name, SLACK, less]] for less in LOADS if less <= load]
            peaks = [max(at) for at in zip(*until, strict=True)]
            share = ratios([read(run) for run in runs[name, SLACK, load]], peaks)
            goals.append(Goal(f"{name}: good {label}/s at {load:g} × capacity / peak", share, 0.95))
    for load in OVERLOADS:
        shares = tuple(min(run.deciles) / run.good_share for run in runs[name, SLACK, load] if run.good_share)
        goals.append(Goal(f"{name}: least length decile's good share / mean, at {load:g} ×", shares, 0.5))
    kept = tuple(
        min(runs[name, SLACK, load][at].kept for load in LOADS) for at in range(_num_seeds(runs, name))
    )
    goals.append(Goal(f"{name}: promises kept, at the worst load", kept, 0.97, spec=".3f"))
    return goals


def _num_seeds(runs: Runs, name: str) -> int:
    return len(runs[name, SLACK, LOADS[0]])


def _requests(run: Figures) -> float:
    return run.requests_per_s


def _tokens(run: Figures) -> float:
    return run.tokens_per_s


def _loads(runs: Runs) -> str:
    header = ("workload, arm", "load", "good, 1/s", "good tokens/s", "good share", "refused", "promises kept")
    rows = [
        (
            f"{name}, {arm.name}",
            f"{load:g} ×",
            in_words([run.requests_per_s for run in found]),
            in_words([run.tokens_per_s for run in found], spec=".0f"),
            in_words([run.good_share for run in found], 100, ".0f") + " %",
            in_words([run.refused for run in found], 100, ".0f") + " %",
            in_words([run.kept for run in found], 100, ".1f") + " %" if arm == SLACK else "-",
        )
        for (name, arm, load), found in runs.items()
    ]
    return markdown(header, rows)


def _deciles(runs: Runs) -> str:
    """Return the medians over the seeds."""
    header = ("good share by prompt length", "load", *(f"{place + 1}" for place in range(DECILES)))
    rows = [
        (
            f"{name}, {arm.name}",
            f"{load:g} ×",
            *(f"{statistics.median(at):.2f}" for at in zip(*(run.deciles for run in found), strict=True)),
        )
        for (name, arm, load), found in runs.items()
        if arm == SLACK and load in OVERLOADS
    ]
    return markdown(header, rows)
