"""How many refusals past the peak were needless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.claims.cells import cell, estimate
from benchmarks.claims.overload import SLACK, TPOT_RATIO, TTFT_RATIO, WORKLOADS
from benchmarks.claims.play import Case, profile, spec_of
from benchmarks.claims.settings import Settings
from benchmarks.claims.tasks import Workers
from reporting.section import Goal, Section, markdown
from reporting.tables import cell as in_words
from sim.false_refusals import FalseRefusals, false_refusals
from sim.simulation import run

LOADS = (1.2, 1.5, 2.0)
"""Offered, by what arithmetic says a worker carries."""
SAMPLES = 20
QUICK_SAMPLES = 8
MOST_SHARE = 0.03

Found = Mapping[tuple[str, float], Sequence[FalseRefusals]]


def measure(workers: Workers, settings: Settings) -> Section:
    """Some refusals of each run, replayed with the refused one taken at risk."""
    keys = [(name, load) for name in WORKLOADS for load in LOADS]
    tasks = [
        partial(_replay, _case(name, load, seed, settings), settings.is_quick)
        for name, load in keys
        for seed in settings.seeds
    ]
    found = iter(workers.map("refusals", tasks))
    by_key = {key: [next(found) for _ in settings.seeds] for key in keys}
    return section({key: [one for one in ones if one is not None] for key, ones in by_key.items()}, settings)


def _case(name: str, load: float, seed: int, settings: Settings) -> Case:
    promises = cell(profile(), name, TPOT_RATIO, TTFT_RATIO).promises
    rate = load * estimate(profile(), name, promises.tpot_ms)
    return Case(SLACK, name, rate, seed, settings.span_s, promises)


def _replay(case: Case, is_quick: bool) -> FalseRefusals | None:
    spec = spec_of(case)
    return false_refusals(spec, run(spec), QUICK_SAMPLES if is_quick else SAMPLES)


def section(found: Found, settings: Settings) -> Section:
    """A goal for each workload and load at which anybody was refused."""
    goals, rows = [], []
    for (name, load), ones in found.items():
        if not ones:
            continue
        shares = tuple(one.share for one in ones)
        goals.append(
            Goal(f"{name}: false refusals, of all, at {load:g} ×", shares, MOST_SHARE, at_least=False)
        )
        rows.append(
            (
                name,
                f"{load:g} ×",
                str(sum(one.sampled for one in ones)),
                in_words(shares, 100, ".0f") + " %",
                in_words([one.gain for one in ones]),
            )
        )
    method = (
        f"One worker, {settings.words}; TPOT {TPOT_RATIO:g} D, TTFT {TTFT_RATIO:g} × the unloaded median "
        "prompt. Sampled refusals, each replayed with that request taken at risk: false if it is good then, "
        "and the number of good ones around it rises. Steps after it shift, so others turn either way by "
        "chance; the mean change of that number is beside."
    )
    header = ("workload", "load", "replayed", "false", "good requests gained by taking one")
    return Section("refusals: which of them were needless", method, tuple(goals), (markdown(header, rows),))
