"""Compare three classes of promises with plain earliest deadline first, above the capacity."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.claims.runs.cells import estimate
from benchmarks.claims.runs.play import Arm, Case, Played, play, profile
from benchmarks.claims.runs.search import highest
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown, ratios
from reporting.tables import cell as in_words
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Order
from scheduling.policies.slack import SLACK
from sim.commands.capacity import references
from sim.workload import Promises, sample

WORKLOAD = "mixed"
RATIOS = {"interactive": (5.0, 2.5), "standard": (10.0, 2.5), "batch": (25.0, 5.0)}
"""TTFT in the class's own median prompt without load, TPOT in D."""
NUM_WORKERS = 4
LOADS = (1.0, 1.2, 1.5)
GOOD_AT_CAPACITY = 0.9
FLEET = f"{NUM_WORKERS}d"
OURS = Arm(SLACK, fleet=FLEET)
EDF = Arm(replace(SLACK, name="edf", promises=False), fleet=FLEET)
"""The same steps; every request is accepted, in order of due time."""
SARATHI_EDF = Arm(replace(CHUNKED, name="chunked edf", order=Order.DUE), 512, fleet=FLEET)
NO_CLASSES = Arm(replace(SLACK, name="slack without classes"), fleet=FLEET)
ARMS = (OURS, NO_CLASSES, EDF, SARATHI_EDF)

ByClass = tuple[tuple[str, Promises], ...]


def promises() -> ByClass:
    """Return the promise that each class asks for."""
    lengths = sample(WORKLOAD, 1.0)
    found = []
    for name, (ttft, tpot) in RATIOS.items():
        known = references(profile(), [length for length in lengths if length.slo_class == name], 1.0)
        found.append((name, Promises(known.ttft_ms(ttft), known.tpot_ms(tpot))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of good requests of a run: of all requests, and of each class."""

    good: float
    per_s: float
    by_class: tuple[float, ...]


def shares(played: Played, asked: ByClass) -> Shares:
    """Judge each class by its own promise, which also identifies it in runs without classes."""
    met = played.met_own
    by_class = [met[played.asked_ttft_ms == promised.ttft_ms] for _, promised in asked]
    return Shares(
        float(met.mean()),
        float(met.sum()) / played.span_s,
        tuple(float(part.mean()) if len(part) else float("nan") for part in by_class),
    )


def _shares(case: Case) -> Shares:
    return shares(play(case), case.by_class)


def _case(arm: Arm, rate: float, seed: int, settings: Settings, asked: ByClass) -> Case:
    return Case(
        arm, WORKLOAD, rate, seed, settings.span_s, by_class=asked, has_classes=arm == OURS
    )  # fmt: skip


def _capacity(arm: Arm, seed: int, settings: Settings, asked: ByClass) -> float:
    def holds(rate: float) -> bool:
        return _shares(_case(arm, rate, seed, settings, asked)).good >= GOOD_AT_CAPACITY

    guess = 0.7 * estimate(profile(), WORKLOAD, None, NUM_WORKERS)
    return highest(holds, guess, precision=settings.precision)


def measure(workers: Workers, settings: Settings) -> Section:
    """Measure what each arm carries, then all arms at loads around the capacity of the classes."""
    asked = promises()
    seeds = settings.seeds
    carried = workers.per_seed(
        "classes, capacity", ARMS, seeds, lambda arm, seed: partial(_capacity, arm, seed, settings, asked)
    )
    rate = statistics.median(carried[OURS])

    def task(key: tuple[Arm, float], seed: int) -> Callable[[], Shares]:
        arm, load = key
        return partial(_shares, _case(arm, load * rate, seed, settings, asked))

    runs = workers.per_seed("classes", [(arm, load) for arm in ARMS for load in LOADS], seeds, task)
    return section(runs, carried, settings, asked)


def section(
    runs: Mapping[tuple[Arm, float], Sequence[Shares]],
    carried: Mapping[Arm, Sequence[float]],
    settings: Settings,
    asked: ByClass,
) -> Section:
    """Return goals and tables."""

    def ratio(other: Arm, load: float) -> tuple[float, ...]:
        return ratios([run.per_s for run in runs[OURS, load]], [run.per_s for run in runs[other, load]])

    goals = [Goal(f"classes / plain EDF at {load:g} × capacity", ratio(EDF, load), 1.3) for load in LOADS[1:]]
    rows = [
        (
            arm.name,
            f"{load:g} ×",
            in_words([run.per_s for run in found]),
            *(f"{np.median([run.by_class[place] for run in found]):.2f}" for place in range(len(RATIOS))),
            in_words(ratio(arm, load)),
        )
        for (arm, load), found in runs.items()
    ]
    words = "; ".join(
        f"{name} TTFT {promised.ttft_ms} ms, TPOT {promised.tpot_ms} ms" for name, promised in asked
    )
    method = (
        f"{NUM_WORKERS} workers, workload mixed, {settings.words}: {words}. Capacity: the highest rate with "
        f"{GOOD_AT_CAPACITY:.0%} good. Plain EDF has the same steps and accepts every request, in "
        "order of due times."
    )
    header = ("arm", "load", "good, 1/s", *(f"good of {name}" for name in RATIOS), "classes by this")
    capacities = [
        (arm.name, in_words(rates), in_words(ratios(carried[OURS], rates))) for arm, rates in carried.items()
    ]
    tables = (
        markdown(("arm", "capacity, 1/s", "classes by this"), capacities),
        markdown(header, rows),
    )
    return Section("classes: three of them against plain EDF", method, tuple(goals), tables)
