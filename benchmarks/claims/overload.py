"""Measure goodput beyond the peak, its spread over prompt lengths, and how many promises are kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.claims.cells import WORKLOADS, cell, estimate
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Case, Played, SimArm, good, play
from sim.reporting.section import Goal, Section, markdown, ratios, table
from sim.reporting.tables import cell as in_words
from sim.workload import Promises

TPOT_RATIO, TTFT_RATIO = 2.5, 10.0
LOADS = (0.8, 1.0, 1.2, 1.5, 2.0)
"""Offered loads as multiples of the capacity."""
OVERLOADS = (1.5, 2.0)
SLACK, FCFS = SimArm("slack"), SimArm("chunked", 512)
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
    is_good = good(played, promises)
    tokens = float((played.prompt + played.output)[is_good].sum())
    parts = np.array_split(is_good[np.argsort(played.prompt, kind="stable")], DECILES)
    return Figures(
        requests_per_s=float(is_good.sum()) / played.span_s,
        tokens_per_s=tokens / played.span_s,
        kept=float(is_good[played.promised].mean()) if played.promised.any() else 1.0,
        refused=float(played.refused.mean()),
        good_share=float(is_good.mean()),
        deciles=tuple(float(part.mean()) for part in parts),
    )


def _figures(case: Case) -> Figures:
    return figures(play(case), case.promises)


def _is_carried(case: Case) -> bool:
    return _figures(case).good_share >= GOOD_AT_CAPACITY


def measure(lab: Lab) -> Section:
    """Find the capacity by bisection (median over the seeds), then run both arms at multiples of it."""
    promises = {name: cell(name, TPOT_RATIO, TTFT_RATIO).promises for name in WORKLOADS}
    guesses = {
        name: Case(SLACK, name, 0.8 * estimate(name, promise.tpot_ms), promise)
        for name, promise in promises.items()
    }
    rates = lab.capacities("overload, capacity", guesses, _is_carried)
    capacities = {name: statistics.median(seed_rates) for name, seed_rates in rates.items()}
    cases = {
        (name, arm, load): Case(arm, name, load * rate, promises[name])
        for name, rate in capacities.items()
        if rate > 0
        for arm in (SLACK, FCFS)
        for load in LOADS
    }
    return section(lab.judge("overload", cases, _figures), capacities, lab.settings)


Runs = Mapping[tuple[str, SimArm, float], Sequence[Figures]]


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
    """Return goals on figures of each seed, by load: requests, tokens, short and long prompts, promises."""
    goals = []
    by_load = {load: runs[name, SLACK, load] for load in LOADS}
    for label, figure in (("requests", "requests_per_s"), ("tokens", "tokens_per_s")):
        figures_by_load = {load: [getattr(run, figure) for run in by_load[load]] for load in LOADS}
        for load in OVERLOADS:
            peaks = [
                max(at) for at in zip(*(figures_by_load[less] for less in LOADS if less <= load), strict=True)
            ]
            claim = f"{name}: good {label}/s at {load:g} × capacity / peak"
            goals.append(Goal(claim, ratios(figures_by_load[load], peaks), 0.95))
    for load in OVERLOADS:
        shares = tuple(min(run.deciles) / run.good_share for run in by_load[load] if run.good_share)
        goals.append(Goal(f"{name}: least length decile's good share / mean, at {load:g} ×", shares, 0.5))
    kept_shares = tuple(min(run.kept for run in seed) for seed in zip(*by_load.values(), strict=True))
    goals.append(Goal(f"{name}: promises kept, at the worst load", kept_shares, 0.97, spec=".3f"))
    return goals


Row = tuple[tuple[str, SimArm, float], Sequence[Figures]]


def _loads(runs: Runs) -> str:
    def column(figure: str, factor: float = 1, spec: str = ".2f") -> Callable[[Row], str]:
        unit = " %" if factor == 100 else ""
        return lambda row: in_words([getattr(run, figure) for run in row[1]], factor, spec) + unit

    kept_percent = column("kept", 100, ".1f")
    columns: dict[str, Callable[[Row], str]] = {
        "workload, arm": lambda row: f"{row[0][0]}, {row[0][1].name}",
        "load": lambda row: f"{row[0][2]:g} ×",
        "good, 1/s": column("requests_per_s"),
        "good tokens/s": column("tokens_per_s", spec=".0f"),
        "good share": column("good_share", 100, ".0f"),
        "refused": column("refused", 100, ".0f"),
        "promises kept": lambda row: kept_percent(row) if row[0][1] == SLACK else "-",
    }
    return table(runs.items(), columns)


def _deciles(runs: Runs) -> str:
    """Return the medians over the seeds."""
    header = ("good share by prompt length", "load", *(f"{place + 1}" for place in range(DECILES)))
    rows = [
        (
            f"{name}, {arm.name}",
            f"{load:g} ×",
            *(f"{statistics.median(at):.2f}" for at in zip(*(run.deciles for run in load_runs), strict=True)),
        )
        for (name, arm, load), load_runs in runs.items()
        if arm == SLACK and load in OVERLOADS
    ]
    return markdown(header, rows)
