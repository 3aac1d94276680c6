"""Measure how many refusals beyond the peak were needless."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.claims.cells import WORKLOADS, cell, estimate
from benchmarks.claims.lab import Lab, Settings
from benchmarks.claims.overload import SLACK, TPOT_RATIO, TTFT_RATIO
from benchmarks.claims.play import Case, spec_of
from sim.commands.false_refusals import FalseRefusals, false_refusals
from sim.play.simulation import run
from sim.reporting.section import Section, at_most, table
from sim.reporting.tables import cell as in_words

LOADS = (1.2, 1.5, 2.0)
"""Offered loads as multiples of what a worker carries by arithmetic."""
SAMPLES = 12
QUICK_SAMPLES = 6
MOST_SHARE = 0.03
CLAIM = "false beyond chance, of refusals for a promise's sake"

Key = tuple[str, float]
Found = Mapping[Key, Sequence[FalseRefusals]]


def measure(lab: Lab) -> Section:
    """Replay some refusals of each run, with the refused request accepted at risk."""
    promises = {name: cell(name, TPOT_RATIO, TTFT_RATIO).promises for name in WORKLOADS}
    cases = {
        (name, load): Case(SLACK, name, load * estimate(name, promise.tpot_ms), promise)
        for name, promise in promises.items()
        for load in LOADS
    }
    replay = partial(_replay, samples=QUICK_SAMPLES if lab.settings.is_quick else SAMPLES)
    replays = lab.judge("refusals", cases, replay)
    successes = {key: [replay for replay in of_key if replay is not None] for key, of_key in replays.items()}
    return section(successes, lab.settings)


def _replay(case: Case, samples: int) -> FalseRefusals | None:
    spec = spec_of(case)
    return false_refusals(spec, run(spec), samples)


def section(replays: Found, settings: Settings) -> Section:
    """Return a goal for each workload with refusals; loads count together, since chance is large."""
    nonempty = {key: ones for key, ones in replays.items() if ones}
    beyond = {
        name: _beyond_chance([ones for (workload, _), ones in nonempty.items() if workload == name])
        for name in WORKLOADS
    }
    goals = tuple(
        at_most(f"{name}: {CLAIM}", figures, MOST_SHARE) for name, figures in beyond.items() if figures
    )
    method = (
        f"One worker, {settings.words}; TPOT {TPOT_RATIO:g} D, TTFT {TTFT_RATIO:g} × the unloaded median "
        "prompt. Sampled refusals, each replayed with that request taken at risk: false if it is good then, "
        "and the number of good ones around it rises. Steps after it shift, so others turn either way by "
        "chance: beside each, the same replay with a request of one token in its place, a placebo, which "
        "looks like a gain by chance alone. The goal is on the difference of the shares, all loads together."
    )

    def column(figure: str, factor: float = 1, spec: str = ".2f") -> Callable[[Key], str]:
        unit = " %" if factor == 100 else ""
        return lambda key: (
            in_words([getattr(replay, figure) for replay in nonempty[key]], factor, spec) + unit
        )

    columns: dict[str, Callable[[Key], str]] = {
        "workload, load": lambda key: f"{key[0]}, {key[1]:g} ×",
        "replayed": lambda key: str(sum(replay.sampled for replay in nonempty[key])),
        "false or chance": column("share", 100, ".0f"),
        "placebo": column("placebo_share", 100, ".0f"),
        "good gained by taking one": column("gain"),
        "by a placebo": column("placebo_gain"),
        "false of those refused, by whose sake": lambda key: _causes(nonempty[key]),
    }
    data = {
        "runs": [
            {"workload": name, "load": load, "seeds": [asdict(replayed) for replayed in ones]}
            for (name, load), ones in nonempty.items()
        ]
    }
    title = "refusals: which of them were needless"
    return Section(title, method, goals, (table(nonempty, columns),), data)


def _beyond_chance(loads: Sequence[Sequence[FalseRefusals]]) -> tuple[float, ...]:
    """Return the share of false refusals beyond chance, seed by seed."""
    shares = []
    for ones in zip(*loads, strict=False):
        counts = [replayed.for_promises for replayed in ones]
        sampled = sum(count.sampled for count in counts)
        if sampled:
            shares.append(sum(count.false - count.placebos for count in counts) / sampled)
    return tuple(shares)


def _causes(ones: Sequence[FalseRefusals]) -> str:
    parts = []
    for cause in sorted({cause for replayed in ones for cause in replayed.by_cause}):
        counts = [replayed.by_cause[cause] for replayed in ones if cause in replayed.by_cause]
        false, sampled, placebos = (
            sum(getattr(count, name) for count in counts) for name in ("false", "sampled", "placebos")
        )
        parts.append(f"{cause}: {false} of {sampled}, placebos {placebos}")
    return "; ".join(parts)
