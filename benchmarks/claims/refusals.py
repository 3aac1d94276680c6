"""How many refusals past the peak were needless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.claims.overload import SLACK, TPOT_RATIO, TTFT_RATIO, WORKLOADS
from benchmarks.claims.runs.cells import cell, estimate
from benchmarks.claims.runs.play import Case, profile, spec_of
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown
from reporting.tables import cell as in_words
from sim.commands.false_refusals import FalseRefusals, false_refusals
from sim.simulation import run

LOADS = (1.2, 1.5, 2.0)
"""Offered, by what arithmetic says a worker carries."""
SAMPLES = 12
QUICK_SAMPLES = 6
MOST_SHARE = 0.03
CLAIM = "false beyond chance, of refusals for a promise's sake"

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
    """A goal for each workload of which anybody was refused; loads count together, for chance is large."""
    known = {key: ones for key, ones in found.items() if ones}
    goals = tuple(
        Goal(
            f"{name}: {CLAIM}",
            figures,
            MOST_SHARE,
            at_least=False,
        )
        for name in WORKLOADS
        if (figures := _beyond_chance([ones for (one, _), ones in known.items() if one == name]))
    )
    rows = [
        (
            f"{name}, {load:g} ×",
            str(sum(one.sampled for one in ones)),
            in_words([one.share for one in ones], 100, ".0f") + " %",
            in_words([one.placebo_share for one in ones], 100, ".0f") + " %",
            in_words([one.gain for one in ones]),
            in_words([one.placebo_gain for one in ones]),
            _causes(ones),
        )
        for (name, load), ones in known.items()
    ]
    method = (
        f"One worker, {settings.words}; TPOT {TPOT_RATIO:g} D, TTFT {TTFT_RATIO:g} × the unloaded median "
        "prompt. Sampled refusals, each replayed with that request taken at risk: false if it is good then, "
        "and the number of good ones around it rises. Steps after it shift, so others turn either way by "
        "chance: beside each, the same replay with a request of one token in its place, a placebo, which "
        "looks like a gain by chance alone. The goal is on the difference of the shares, all loads together."
    )
    header = (
        "workload, load", "replayed", "false or chance", "placebo",
        "good gained by taking one", "by a placebo", "false of those refused, by whose sake",
    )  # fmt: skip
    data = {
        "runs": [
            {"workload": name, "load": load, "seeds": [asdict(one) for one in ones]}
            for (name, load), ones in known.items()
        ]
    }
    title = "refusals: which of them were needless"
    return Section(title, method, goals, (markdown(header, rows),), data)


def _beyond_chance(loads: Sequence[Sequence[FalseRefusals]]) -> tuple[float, ...]:
    """Seed by seed, every refusal for a promise's sake counting alike."""
    found = []
    for ones in zip(*loads, strict=False):
        counts = [one.for_promises for one in ones]
        sampled = sum(one.sampled for one in counts)
        if sampled:
            found.append(sum(one.false - one.placebos for one in counts) / sampled)
    return tuple(found)


def _causes(ones: Sequence[FalseRefusals]) -> str:
    causes = sorted({cause for one in ones for cause in one.by_cause})
    parts = []
    for cause in causes:
        counts = [one.by_cause[cause] for one in ones if cause in one.by_cause]
        false, sampled, placebos = (
            sum(getattr(one, name) for one in counts) for name in ("false", "sampled", "placebos")
        )
        parts.append(f"{cause}: {false} of {sampled}, placebos {placebos}")
    return "; ".join(parts)
