"""Simulate how much of a busy fleet a tenant gets beside one that asks for nine times as much.

Each cell plays the same requests twice: once as two tenants', once as one tenant's. The small tenant's gain
is what fairness gives; the work that all good requests together lose is what it costs.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.flags import add_shared_flags, number
from benchmarks.telling import Telling
from reporting.progress import progress_bars
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from scheduling.admission.shares import virtual_tokens
from scheduling.placement import Placement
from services.profiles import load_profile
from sim import FleetShape, SimResult, SimSpec
from sim import run as simulate
from sim.commands.capacity import capacity_per_s, references
from sim.workload import Promises, draw, sample

WORKLOAD = "chat"
PROFILE = "h200-llama-3.1-8b"
FLEET = FleetShape(0, 2)
SMALL_SHARE = 0.1
LOADS = (0.8, 1.5, 3.0)
"""Loads as shares of the rate that arithmetic says the fleet carries: below it, past it, far past it."""
TTFT_RATIOS = (10.0, 50.0)
"""In median prompts without load: a queue that may be short, and one that may be long."""
TPOT_RATIO = 2.5


@dataclass(frozen=True, slots=True)
class Cell:
    """One load under one promise."""

    load: float
    ttft_ratio: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Good requests of those that each tenant sent, and the work of all in a second."""

    big: float
    small: float
    work_per_s: float
    """Virtual tokens, by first tokens while requests still came: a longer queue is served afterwards."""


def play(cell: Cell, seed: int, span_s: float, *, together: bool = False) -> Shares:
    """One run; `together` takes all requests as one tenant's."""
    profile, lengths = load_profile(PROFILE), sample(WORKLOAD, 1.0)
    units = references(profile, lengths, 1.0)
    promises = Promises(units.ttft_ms(cell.ttft_ratio), units.tpot_ms(TPOT_RATIO))
    tpot_s = units.tpot_ms(TPOT_RATIO) / 1000
    rate = cell.load * capacity_per_s(profile, FLEET, Placement.AGGREGATED, lengths, tpot_s)
    drawn = draw(WORKLOAD, "poisson", rate, span_s, seed, promises)
    is_small = small_ones(len(drawn), seed)
    names = ["one" if together else "small" if small else "big" for small in is_small]
    trace = tuple(replace(one, tenant=name) for one, name in zip(drawn, names, strict=True))
    return shares(simulate(SimSpec(profile, FLEET, trace, seed=seed)), is_small, span_s)


def small_ones(count: int, seed: int) -> list[bool]:
    """Whether each request is the small tenant's."""
    rng = random.Random(seed)
    return [rng.random() < SMALL_SHARE for _ in range(count)]


def shares(result: SimResult, is_small: Sequence[bool], span_s: float) -> Shares:
    """Return each tenant's share of good requests, and the good work per second."""
    good = [one.good for one in result.requests]
    by_tenant = [
        statistics.fmean(met for met, small in zip(good, is_small, strict=True) if small is which)
        for which in (False, True)
    ]
    work = sum(
        virtual_tokens(one.asked.prompt_tokens, one.asked.output_tokens, 1.0)
        for one in result.requests
        if one.good and one.ttft_s is not None and one.asked.at_s + one.ttft_s <= span_s
    )
    return Shares(by_tenant[0], by_tenant[1], work / span_s)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--span-s", type=number, default=60.0, metavar="S", help="time over which requests arrive (60)"
    )
    add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    """All cells with all seeds."""
    telling = Telling(args)
    cells = [Cell(load, ratio) for ratio in TTFT_RATIOS for load in LOADS]
    found: dict[Cell, list[tuple[Shares, Shares]]] = {one: [] for one in cells}
    with progress_bars() as bars:
        runs = [(one, seed) for one in cells for seed in args.seeds]
        for one, seed in bars.track(runs, description="fairness"):
            apart, together = play(one, seed, args.span_s), play(one, seed, args.span_s, together=True)
            found[one].append((apart, together))
    telling.add(_section(found, args.span_s, args.seeds))
    return telling.end()


def _section(found: dict[Cell, list[tuple[Shares, Shares]]], span_s: float, seeds: Sequence[int]) -> Section:
    rows, goals = [], []
    for one, pairs in found.items():
        kept = tuple(apart.work_per_s / together.work_per_s for apart, together in pairs)
        small = tuple(apart.small for apart, _ in pairs)
        rows.append(
            (
                f"{one.ttft_ratio:g}",
                f"{one.load:g} ×",
                cell(small),
                cell([together.small for _, together in pairs]),
                cell([apart.big for apart, _ in pairs]),
                cell([together.big for _, together in pairs]),
                cell(kept),
            )
        )
        where = f"TTFT of {one.ttft_ratio:g} prompts, {one.load:g} × capacity"
        goals.append(Goal(f"{where}: good of the small tenant", small, 0.9))
        goals.append(Goal(f"{where}: work of all, by that without tenants", kept, 0.95))
    header = (
        "TTFT, median prompts",
        "load",
        "small tenant, good",
        "the same without tenants",
        "big tenant, good",
        "the same without tenants",
        "work of all, by without",
    )
    method = (
        f"{FLEET} of {PROFILE}, workload {WORKLOAD}, {span_s:g} s of Poisson arrivals, a tenth of them the "
        f"small tenant's; TPOT {TPOT_RATIO:g} D; seeds {', '.join(map(str, seeds))}."
    )
    return Section("fairness: a tenth beside nine tenths", method, tuple(goals), (markdown(header, rows),))
