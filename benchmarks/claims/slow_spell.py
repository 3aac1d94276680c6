"""Measure what an idle fleet refuses after its machines were slow for a while, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.claims.lab import Lab, Settings
from runtime.profiles import load_profile
from scheduling.cost_model import StepShape
from sim.play.simulation import run as simulate
from sim.reporting.section import Section, at_most, table
from sim.reporting.tables import cell
from sim.result import End
from sim.spec import FleetShape, SimSpec
from sim.step_times import RecordedStep
from sim.workloads.trace import TraceRequest

PROFILE = "demo-cpu"
TTFT_MS = 500
SHORT = range(20, 60)
"""Tokens of a prompt that takes some milliseconds."""
LONG = 2400
EVERY_S = 2.8
AFTER_S = 60.0
STEP_EVERY_S = 0.1
DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Spell:
    """Requests without an SLO, (seconds, prompt tokens), on machines that are slow for a while."""

    name: str
    before: tuple[tuple[float, int], ...]
    begin_s: float
    end_s: float
    slow_by: float


def spells(draw: random.Random) -> Sequence[Spell]:
    """Return two spells: one slow prompt among fast ones, and a minute in which all prompts are slow, each
    alone.
    """
    quick = tuple((float(second), draw.choice(SHORT)) for second in range(1, 5))
    slow = tuple((float(second), draw.choice(SHORT)) for second in range(1, 58, 3))
    return (
        Spell("one prompt of 2400 tokens, 8 times as slow", (*quick, (8.0, LONG)), 7.5, 14.0, 8.0),
        Spell("19 short prompts, 200 times as slow", slow, 0.0, 60.0, 200.0),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of the short requests in the minute after a spell."""

    name: str
    sent: int
    refused: int
    broken: int
    """Requests accepted, but not in time."""
    over_after_s: float
    """Seconds from the spell's end to the last request that was refused or late; 0 without any."""


def measure(lab: Lab) -> Section:
    """Play each spell with each seed."""
    by_seed = lab.map("slow_spell", [partial(_figures, seed) for seed in lab.settings.seeds])
    return section(by_seed, lab.settings)


def _figures(seed: int) -> list[Figures]:
    return [after(spell, seed) for spell in spells(random.Random(seed))]


def after(spell: Spell, seed: int) -> Figures:
    """Play a spell and the minute after it."""
    draw = random.Random(seed)
    times = [spell.end_s + EVERY_S * turn for turn in range(1, int(AFTER_S / EVERY_S) + 1)]
    trace = [TraceRequest(at_s, tokens, 4) for at_s, tokens in spell.before]
    trace += [TraceRequest(at_s, draw.choice(SHORT), 4, ttft_ms=TTFT_MS) for at_s in times]
    profile = load_profile(PROFILE)
    shape = StepShape.of(0, 0, [(0, 64)])
    alone_s = profile.cost.predict(shape)
    steps = []
    for place in range(round((times[-1] + DRAIN_S) / STEP_EVERY_S)):
        at_s = place * STEP_EVERY_S
        is_slow = spell.begin_s <= at_s < spell.end_s
        steps.append(RecordedStep(at_s, shape, alone_s * (spell.slow_by if is_slow else 1.0)))
    spec = SimSpec(profile, FleetShape(0, 1), tuple(trace), step_times={"decode-0": tuple(steps)})
    later = simulate(spec).requests[len(spell.before) :]
    bad = [request for request in later if not request.good]
    refused = sum(request.end is End.REFUSED for request in later)
    over_s = max((request.asked.at_s - spell.end_s for request in bad), default=0.0)
    return Figures(spell.name, len(later), refused, len(bad) - refused, over_s)


def section(by_seed: Sequence[Sequence[Figures]], settings: Settings) -> Section:
    """Return the section; the goal is that no request is refused."""
    spells = list(zip(*by_seed, strict=True))
    goals = tuple(
        at_most(f"{runs[0].name}: refused of {runs[0].sent}", (run.refused for run in runs), 0.0, ".0f")
        for runs in spells
    )
    columns: dict[str, Callable[[Sequence[Figures]], str]] = {
        "slow before": lambda runs: runs[0].name,
        "sent": lambda runs: str(runs[0].sent),
        "refused": lambda runs: cell([run.refused for run in runs], spec=".0f"),
        "accepted and late": lambda runs: cell([run.broken for run in runs], spec=".0f"),
        "last that was not served in time, s after": lambda runs: cell(
            [run.over_after_s for run in runs], spec=".1f"
        ),
    }
    method = (
        f"One worker, profile {PROFILE}, seeds {', '.join(map(str, settings.seeds))}. After the spell, a "
        f"prompt of {SHORT.start} to {SHORT.stop - 1} tokens with ttft_ms = {TTFT_MS} comes every "
        f"{EVERY_S:g} s for {AFTER_S:.0f} s, to an idle fleet."
    )
    return Section("slow_spell: an idle fleet that was slow", method, goals, (table(spells, columns),))
