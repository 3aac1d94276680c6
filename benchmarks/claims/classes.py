"""Compare three classes of promises with plain earliest deadline first, above the capacity."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.claims.cells import estimate
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.play import Case, Played, SimArm, play, profile
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Order
from scheduling.policies.slack import SLACK
from sim.commands.capacity import references
from sim.reporting.section import Goal, Section, ratios, table
from sim.reporting.tables import cell as in_words
from sim.workload import Promises, sample

WORKLOAD = "mixed"
RATIOS = {"interactive": (5.0, 2.5), "standard": (10.0, 2.5), "batch": (25.0, 5.0)}
"""TTFT in the class's own median prompt without load, TPOT in D."""
NUM_WORKERS = 4
LOADS = (1.0, 1.2, 1.5)
GOOD_AT_CAPACITY = 0.9
FLEET = f"{NUM_WORKERS}d"
OURS = SimArm(SLACK, fleet=FLEET)
EDF = SimArm(replace(SLACK, name="edf", promises=False), fleet=FLEET)
"""The same steps; every request is accepted, in order of due time."""
SARATHI_EDF = SimArm(replace(CHUNKED, name="chunked edf", order=Order.DUE), 512, fleet=FLEET)
NO_CLASSES = SimArm(replace(SLACK, name="slack without classes"), fleet=FLEET)
ARMS = (OURS, NO_CLASSES, EDF, SARATHI_EDF)

ByClass = tuple[tuple[str, Promises], ...]


def promises() -> ByClass:
    """Return the promise that each class asks for."""
    lengths = sample(WORKLOAD, 1.0)
    by_class = []
    for name, (ttft, tpot) in RATIOS.items():
        unloaded = references(profile(), [length for length in lengths if length.slo_class == name], 1.0)
        by_class.append((name, Promises(unloaded.ttft_ms(ttft), unloaded.tpot_ms(tpot))))
    return tuple(by_class)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of good requests of a run: of all requests, and of each class."""

    good: float
    per_s: float
    by_class: tuple[float, ...]


def shares(played: Played, promises_of: ByClass) -> Shares:
    """Judge each class by its own promise, which also identifies it in runs without classes."""
    is_good = played.met_own
    by_class = [is_good[played.asked_ttft_ms == promised.ttft_ms] for _, promised in promises_of]
    return Shares(
        float(is_good.mean()),
        float(is_good.sum()) / played.span_s,
        tuple(float(part.mean()) if len(part) else float("nan") for part in by_class),
    )


def _shares(case: Case) -> Shares:
    return shares(play(case), case.by_class)


def _is_carried(case: Case) -> bool:
    return _shares(case).good >= GOOD_AT_CAPACITY


def measure(lab: Lab) -> Section:
    """Measure what each arm carries, then all arms at loads around the capacity of the classes."""
    by_class = promises()
    guess = 0.7 * estimate(WORKLOAD, None, NUM_WORKERS)
    cases = {arm: Case(arm, WORKLOAD, guess, by_class=by_class, has_classes=arm == OURS) for arm in ARMS}
    carried = lab.capacities("classes, capacity", cases, _is_carried)
    rate = statistics.median(carried[OURS])
    loaded = {
        (arm, load): replace(case, rate_per_s=load * rate) for arm, case in cases.items() for load in LOADS
    }
    return section(lab.judge("classes", loaded, _shares), carried, lab.settings, by_class)


Row = tuple[tuple[SimArm, float], Sequence[Shares]]


def section(
    runs: Mapping[tuple[SimArm, float], Sequence[Shares]],
    carried: Mapping[SimArm, Sequence[float]],
    settings: Settings,
    by_class: ByClass,
) -> Section:
    """Return goals and tables."""

    def ratio(other: SimArm, load: float) -> tuple[float, ...]:
        return ratios([run.per_s for run in runs[OURS, load]], [run.per_s for run in runs[other, load]])

    def good_of(place: int) -> Callable[[Row], str]:
        return lambda row: f"{statistics.median(run.by_class[place] for run in row[1]):.2f}"

    goals = [Goal(f"classes / plain EDF at {load:g} × capacity", ratio(EDF, load), 1.3) for load in LOADS[1:]]
    words = "; ".join(
        f"{name} TTFT {promised.ttft_ms} ms, TPOT {promised.tpot_ms} ms" for name, promised in by_class
    )
    method = (
        f"{NUM_WORKERS} workers, workload mixed, {settings.words}: {words}. Capacity: the highest rate with "
        f"{GOOD_AT_CAPACITY:.0%} good. Plain EDF has the same steps and accepts every request, in "
        "order of due times."
    )
    capacities: dict[str, Callable[[SimArm], str]] = {
        "arm": lambda arm: arm.name,
        "capacity, 1/s": lambda arm: in_words(carried[arm]),
        "classes by this": lambda arm: in_words(ratios(carried[OURS], carried[arm])),
    }
    loads: dict[str, Callable[[Row], str]] = {
        "arm": lambda row: row[0][0].name,
        "load": lambda row: f"{row[0][1]:g} ×",
        "good, 1/s": lambda row: in_words([run.per_s for run in row[1]]),
        **{f"good of {name}": good_of(place) for place, name in enumerate(RATIOS)},
        "classes by this": lambda row: in_words(ratio(*row[0])),
    }
    tables = (table(carried, capacities), table(runs.items(), loads))
    return Section("classes: three of them against plain EDF", method, tuple(goals), tables)
