"""Measure how many refusals beyond the peak were needless."""

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
"""Offered loads as multiples of what a worker carries by arithmetic."""
SAMPLES = 12
QUICK_SAMPLES = 6
MOST_SHARE = 0.03
CLAIM = "false beyond chance, of refusals for a promise's sake"

Found = Mapping[tuple[str, float], Sequence[FalseRefusals]]


def measure(workers: Workers, settings: Settings) -> Section:
    """Replay some refusals of each run, with the refused request accepted at risk."""
    keys = [(name, load) for name in WORKLOADS for load in LOADS]
    replays = workers.per_seed(
        "refusals",
        keys,
        settings.seeds,
        lambda key, seed: partial(_replay, _case(*key, seed, settings), settings.is_quick),
    )
    found = {key: [replay for replay in of_key if replay is not None] for key, of_key in replays.items()}
    return section(found, settings)


def _case(name: str, load: float, seed: int, settings: Settings) -> Case:
    promises = cell(profile(), name, TPOT_RATIO, TTFT_RATIO).promises
    rate = load * estimate(profile(), name, promises.tpot_ms)
    return Case(SLACK, name, rate, seed, settings.span_s, promises)


def _replay(case: Case, is_quick: bool) -> FalseRefusals | None:
    spec = spec_of(case)
    return false_refusals(spec, run(spec), QUICK_SAMPLES if is_quick else SAMPLES)


def section(found: Found, settings: Settings) -> Section:
    """Return a goal for each workload with refusals; loads count together, since chance is large."""
    known = {key: ones for key, ones in found.items() if ones}
    goals = tuple(
        Goal(
            f"{name}: {CLAIM}",
            figures,
            MOST_SHARE,
            at_least=False,
        )
        for name in WORKLOADS
        if (figures := _beyond_chance([ones for (workload, _), ones in known.items() if workload == name]))
    )
    rows = [
        (
            f"{name}, {load:g} ×",
            str(sum(replayed.sampled for replayed in ones)),
            in_words([replayed.share for replayed in ones], 100, ".0f") + " %",
            in_words([replayed.placebo_share for replayed in ones], 100, ".0f") + " %",
            in_words([replayed.gain for replayed in ones]),
            in_words([replayed.placebo_gain for replayed in ones]),
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
            {"workload": name, "load": load, "seeds": [asdict(replayed) for replayed in ones]}
            for (name, load), ones in known.items()
        ]
    }
    title = "refusals: which of them were needless"
    return Section(title, method, goals, (markdown(header, rows),), data)


def _beyond_chance(loads: Sequence[Sequence[FalseRefusals]]) -> tuple[float, ...]:
    """Return the share of false refusals beyond chance, seed by seed."""
    found = []
    for ones in zip(*loads, strict=False):
        counts = [replayed.for_promises for replayed in ones]
        sampled = sum(count.sampled for count in counts)
        if sampled:
            found.append(sum(count.false - count.placebos for count in counts) / sampled)
    return tuple(found)


def _causes(ones: Sequence[FalseRefusals]) -> str:
    causes = sorted({cause for replayed in ones for cause in replayed.by_cause})
    parts = []
    for cause in causes:
        counts = [replayed.by_cause[cause] for replayed in ones if cause in replayed.by_cause]
        false, sampled, placebos = (
            sum(getattr(count, name) for count in counts) for name in ("false", "sampled", "placebos")
        )
        parts.append(f"{cause}: {false} of {sampled}, placebos {placebos}")
    return "; ".join(parts)
