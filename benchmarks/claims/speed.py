"""Measure how long the simulator takes."""

from __future__ import annotations

from functools import partial

from benchmarks.claims.runs.cells import cell, estimate
from benchmarks.claims.runs.play import Arm, Case, Played, play, profile
from benchmarks.claims.runs.settings import Settings
from benchmarks.claims.runs.tasks import Workers
from reporting.section import Goal, Section, markdown

NUM_WORKERS = 16
LOAD = 0.8
SPAN_S = 3600.0
QUICK_SPAN_S = 300.0
MOST_S = 120.0
TPOT_RATIO, TTFT_RATIO = 5.0, 25.0


def measure(workers: Workers, settings: Settings) -> Section:
    """Run one simulation, alone on the machine as far as this command can control it."""
    promises = cell(profile(), "chat", TPOT_RATIO, TTFT_RATIO).promises
    rate = LOAD * estimate(profile(), "chat", promises.tpot_ms, NUM_WORKERS)
    span_s = QUICK_SPAN_S if settings.is_quick else SPAN_S
    case = Case(Arm("slack", fleet=f"{NUM_WORKERS}d"), "chat", rate, settings.seeds[0], span_s, promises)
    (played,) = workers.map("speed", [partial(play, case)])
    return section(played, case)


def section(played: Played, case: Case) -> Section:
    """Return the section; a shorter run is scaled to an hour."""
    cost, hours = played.cost, case.span_s / SPAN_S
    method = (
        f"{NUM_WORKERS} workers that do both, chat at {case.rate_per_s:.1f} requests/s, {LOAD:.0%} of what "
        f"they carry by arithmetic; {case.span_s:g} s simulated in {cost.wall_s:.0f} s."
    )
    requests = case.rate_per_s * case.span_s
    rows = [
        ("processor seconds for the hour", f"{cost.cpu_s / hours:.0f}"),
        ("requests", f"{requests:.0f}"),
        ("processor µs per request", f"{cost.cpu_s / requests * 1e6:.0f}"),
        ("events", f"{cost.num_events}"),
        ("processor µs per event", f"{cost.cpu_s / cost.num_events * 1e6:.0f}"),
    ]
    claim = f"wall seconds for one hour of {NUM_WORKERS} workers at {LOAD:.0%}"
    goal = Goal(claim, (cost.wall_s / hours,), MOST_S, at_least=False, spec=".0f")
    return Section("speed: the simulator", method, (goal,), (markdown(("", "figure"), rows),))
