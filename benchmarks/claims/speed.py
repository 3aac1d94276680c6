"""Measure how long the simulator takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from benchmarks.claims.cells import cell, estimate
from benchmarks.claims.lab import Lab
from benchmarks.claims.play import Case, SimArm, spec_of
from sim.play.simulation import run
from sim.reporting.section import Section, at_most, markdown

NUM_WORKERS = 16
LOAD = 0.8
SPAN_S = 3600.0
QUICK_SPAN_S = 300.0
MOST_S = 120.0
TPOT_RATIO, TTFT_RATIO = 5.0, 25.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of simulating."""

    wall_s: float
    cpu_s: float
    """CPU seconds of the process, which depend less on other load of the machine."""
    num_events: int


def measure(lab: Lab) -> Section:
    """Run one simulation, alone on the machine as far as this command can control it."""
    promises = cell("chat", TPOT_RATIO, TTFT_RATIO).promises
    rate = LOAD * estimate("chat", promises.tpot_ms, NUM_WORKERS)
    span_s = QUICK_SPAN_S if lab.settings.is_quick else SPAN_S
    arm = SimArm("slack", fleet=f"{NUM_WORKERS}d")
    case = Case(arm, "chat", rate, promises, seed=lab.settings.seeds[0], span_s=span_s)
    (cost,) = lab.map("speed", [partial(_cost, case)])
    return section(cost, case)


def _cost(case: Case) -> Cost:
    spec = spec_of(case)
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    num_events = run(spec).num_events
    return Cost(time.perf_counter() - began_s, time.process_time() - cpu_began_s, num_events)


def section(cost: Cost, case: Case) -> Section:
    """Return the section; a shorter run is scaled to an hour."""
    hours, requests = case.span_s / SPAN_S, case.rate_per_s * case.span_s
    method = (
        f"{NUM_WORKERS} workers that do both, chat at {case.rate_per_s:.1f} requests/s, {LOAD:.0%} of what "
        f"they carry by arithmetic; {case.span_s:g} s simulated in {cost.wall_s:.0f} s."
    )
    rows = [
        ("processor seconds for the hour", f"{cost.cpu_s / hours:.0f}"),
        ("requests", f"{requests:.0f}"),
        ("processor µs per request", f"{cost.cpu_s / requests * 1e6:.0f}"),
        ("events", f"{cost.num_events}"),
        ("processor µs per event", f"{cost.cpu_s / cost.num_events * 1e6:.0f}"),
    ]
    claim = f"wall seconds for one hour of {NUM_WORKERS} workers at {LOAD:.0%}"
    goal = at_most(claim, [cost.wall_s / hours], MOST_S, ".0f")
    return Section("speed: the simulator", method, (goal,), (markdown(("", "figure"), rows),))
