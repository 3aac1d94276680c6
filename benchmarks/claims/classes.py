"""Three classes of promises against plain earliest deadline first, past the capacity."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
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
"""The same steps; all are taken, and who is due first goes first."""
SARATHI_EDF = Arm(replace(CHUNKED, name="chunked edf", order=Order.DUE), 512, fleet=FLEET)
NO_CLASSES = Arm(replace(SLACK, name="slack without classes"), fleet=FLEET)
ARMS = (OURS, NO_CLASSES, EDF, SARATHI_EDF)

ByClass = tuple[tuple[str, Promises], ...]


def promises() -> ByClass:
    """What each class asks for."""
    lengths = sample(WORKLOAD, 1.0)
    found = []
    for name, (ttft, tpot) in RATIOS.items():
        known = references(profile(), [one for one in lengths if one.slo_class == name], 1.0)
        found.append((name, Promises(known.ttft_ms(ttft), known.tpot_ms(tpot))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one run, the share of good requests: of all, and of each class."""

    good: float
    per_s: float
    by_class: tuple[float, ...]


def shares(played: Played, asked: ByClass) -> Shares:
    """Each class judged by its own promise. Played without classes, they are known by their promises."""
    met = played.met_own
    by_class = [met[played.asked_ttft_ms == one.ttft_ms] for _, one in asked]
    return Shares(
        float(met.mean()),
        float(met.sum()) / played.span_s,
        tuple(float(one.mean()) if len(one) else float("nan") for one in by_class),
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
    """What each arm carries, then all of them past what the classes do."""
    asked = promises()
    tasks = [partial(_capacity, arm, seed, settings, asked) for arm in ARMS for seed in settings.seeds]
    rates = iter(workers.map("classes, capacity", tasks))
    carried = {arm: [next(rates) for _ in settings.seeds] for arm in ARMS}
    rate = statistics.median(carried[OURS])
    keys = [(arm, load) for arm in ARMS for load in LOADS]
    cases = [_case(arm, load * rate, seed, settings, asked) for arm, load in keys for seed in settings.seeds]
    found = iter(workers.map("classes", [partial(_shares, case) for case in cases]))
    runs = {key: [next(found) for _ in settings.seeds] for key in keys}
    return section(runs, carried, settings, asked)


def section(
    runs: Mapping[tuple[Arm, float], Sequence[Shares]],
    carried: Mapping[Arm, Sequence[float]],
    settings: Settings,
    asked: ByClass,
) -> Section:
    """Goals and tables."""

    def ratio(other: Arm, load: float) -> tuple[float, ...]:
        return ratios([one.per_s for one in runs[OURS, load]], [one.per_s for one in runs[other, load]])

    goals = [Goal(f"classes / plain EDF at {load:g} × capacity", ratio(EDF, load), 1.3) for load in LOADS[1:]]
    rows = [
        (
            arm.name,
            f"{load:g} ×",
            in_words([one.per_s for one in found]),
            *(f"{np.median([one.by_class[place] for one in found]):.2f}" for place in range(len(RATIOS))),
            in_words(ratio(arm, load)),
        )
        for (arm, load), found in runs.items()
    ]
    words = "; ".join(f"{name} TTFT {one.ttft_ms} ms, TPOT {one.tpot_ms} ms" for name, one in asked)
    method = (
        f"{NUM_WORKERS} workers, workload mixed, {settings.words}: {words}. Capacity: the highest rate with "
        f"{GOOD_AT_CAPACITY:.0%} good. Plain EDF has the same steps and takes everybody, by when "
        "their first tokens are due."
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
