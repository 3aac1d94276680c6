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

from benchmarks.flags import number
from benchmarks.report import report
from reporting.progress import tracked
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
    """The share of good requests of each tenant, and the good work of all per second."""

    big: float
    small: float
    work_per_s: float
    """Virtual tokens, counted by first tokens while requests still arrived: a longer queue is served
    afterwards."""


def play(cell: Cell, seed: int, span_s: float, *, together: bool = False) -> Shares:
    """Run once; with `together`, all requests belong to one tenant."""
    profile, lengths = load_profile(PROFILE), sample(WORKLOAD, 1.0)
    units = references(profile, lengths, 1.0)
    promises = Promises(units.ttft_ms(cell.ttft_ratio), units.tpot_ms(TPOT_RATIO))
    tpot_s = units.tpot_ms(TPOT_RATIO) / 1000
    rate = cell.load * capacity_per_s(profile, FLEET, Placement.AGGREGATED, lengths, tpot_s)
    drawn = draw(WORKLOAD, "poisson", rate, span_s, seed, promises)
    is_small = small_ones(len(drawn), seed)
    names = ["one" if together else "small" if small else "big" for small in is_small]
    trace = tuple(replace(request, tenant=name) for request, name in zip(drawn, names, strict=True))
    return shares(simulate(SimSpec(profile, FLEET, trace, seed=seed)), is_small, span_s)


def small_ones(count: int, seed: int) -> list[bool]:
    """Return for each request whether it belongs to the small tenant."""
    rng = random.Random(seed)
    return [rng.random() < SMALL_SHARE for _ in range(count)]


def shares(result: SimResult, is_small: Sequence[bool], span_s: float) -> Shares:
    """Return each tenant's share of good requests, and the good work per second."""
    small = [request.good for request, is_its in zip(result.requests, is_small, strict=True) if is_its]
    big = [request.good for request, is_its in zip(result.requests, is_small, strict=True) if not is_its]
    work = sum(
        virtual_tokens(request.asked.prompt_tokens, request.asked.output_tokens, 1.0)
        for request in result.requests
        if request.good and request.ttft_s is not None and request.asked.at_s + request.ttft_s <= span_s
    )
    return Shares(statistics.fmean(big), statistics.fmean(small), work / span_s)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--span-s", type=number, default=60.0, metavar="S", help="time over which requests arrive (60)"
    )


def run(args: argparse.Namespace) -> int:
    """Run all cells with all seeds."""
    found: dict[Cell, list[tuple[Shares, Shares]]] = {}
    runs = [(Cell(load, ratio), seed) for ratio in TTFT_RATIOS for load in LOADS for seed in args.seeds]
    for case, seed in tracked(runs, "fairness"):
        apart, together = play(case, seed, args.span_s), play(case, seed, args.span_s, together=True)
        found.setdefault(case, []).append((apart, together))
    return report(args, [_section(found, args.span_s, args.seeds)])


def _section(found: dict[Cell, list[tuple[Shares, Shares]]], span_s: float, seeds: Sequence[int]) -> Section:
    rows, goals = [], []
    for case, pairs in found.items():
        apart, together = zip(*pairs, strict=True)
        kept = tuple(ours.work_per_s / theirs.work_per_s for ours, theirs in pairs)
        small = tuple(shares.small for shares in apart)
        figures = (
            small,
            [shares.small for shares in together],
            [shares.big for shares in apart],
            [shares.big for shares in together],
            kept,
        )
        rows.append((f"{case.ttft_ratio:g}", f"{case.load:g} ×", *map(cell, figures)))
        where = f"TTFT of {case.ttft_ratio:g} prompts, {case.load:g} × capacity"
        goals.append(Goal(f"{where}: good of the small tenant", small, 0.9))
        goals.append(Goal(f"{where}: work of all, by that without tenants", kept, 0.95))
    header = (
        "TTFT, median prompts", "load", "small tenant, good", "the same without tenants", "big tenant, good",
        "the same without tenants", "work of all, by without",
    )  # fmt: skip
    method = (
        f"{FLEET} of {PROFILE}, workload {WORKLOAD}, {span_s:g} s of Poisson arrivals, a tenth of them the "
        f"small tenant's; TPOT {TPOT_RATIO:g} D; seeds {', '.join(map(str, seeds))}."
    )
    return Section("fairness: a tenth beside nine tenths", method, tuple(goals), (markdown(header, rows),))
