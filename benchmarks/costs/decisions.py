"""Measure how long pure decisions take: microseconds, the least of several rounds.

The least is used because a decision always computes the same; any excess is due to the machine. Each seed is
another repetition of all measurements.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.costs.core_decisions import COST
from benchmarks.report import report
from scheduling.placement import PathCandidate, choose_conditional
from scheduling.policies import NAMES, by_name
from scheduling.roles import MixedLoad, Roles, rebalance
from scheduling.step import DecodeLoad, PrefillWork, StepView
from sim.reporting.progress import tracked
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cell

ROUNDS = 7


def view(num_waiting: int, prompt_tokens: int) -> StepView:
    """Return 256 decodes with slack for some thousand tokens, and prompts, some of them begun."""
    decodes = DecodeLoad(256, 256 * 1100, slack_s=0.08, gap_limit_s=0.09)
    waiting = [
        PrefillWork(place, prompt_tokens, num_computed_tokens=512 * (place % 2), waited_s=1.0)
        for place in range(num_waiting)
    ]
    return StepView(decodes, waiting, token_budget=8192, max_seqs=512, cost=COST)


def paths(num_prefill: int, num_decode: int) -> list[PathCandidate]:
    """Return every path through a fleet; all of them hold."""
    own = [PathCandidate(f"d{d}", 0.2, 0.1, meets=True) for d in range(num_decode)]
    return own + [PathCandidate(f"p{p}", 0.1 + 0.001 * p, 0.12, meets=True) for p in range(num_prefill)]


def decisions() -> dict[str, Callable[[], object]]:
    """Return the decisions to time, by name."""
    short, long = view(8, 300), view(8, 4000)
    no_batch = replace(long, decodes=DecodeLoad())
    found: dict[str, Callable[[], object]] = {}
    for name in NAMES:
        plan = by_name(name).plan
        found[f"plan, {name}: 256 decodes, 8 prompts of 300"] = partial(plan, short)
        found[f"plan, {name}: 256 decodes, 8 prompts of 4000"] = partial(plan, long)
        found[f"plan, {name}: no decode, 8 prompts of 4000"] = partial(plan, no_batch)
    few, many = paths(2, 4), paths(64, 136)
    mixed = [MixedLoad(f"d{d}", 0.3, 0.4) for d in range(200)]
    found[f"path of {len(few)}"] = partial(choose_conditional, few)
    found[f"path of {len(many)}"] = partial(choose_conditional, many)
    found["weights of 200 decode workers"] = partial(rebalance, Roles(), mixed, [0.9] * 100, 0.0)
    return found


def microseconds(decide: Callable[[], object], calls: int) -> float:
    """Return the microseconds of one call."""
    return min(timeit.repeat(decide, number=calls, repeat=ROUNDS)) / calls * 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calls", type=int, default=2000, metavar="N", help="calls of each decision in each round (2000)"
    )


def run(args: argparse.Namespace) -> int:
    """Time every decision, once per seed."""
    known = decisions()
    found: dict[str, list[float]] = {name: [] for name in known}
    for name in tracked([*known] * len(args.seeds), "decisions"):
        found[name].append(microseconds(known[name], args.calls))
    rows = [(name, cell(figures, spec=".1f")) for name, figures in found.items()]
    method = f"The least of {ROUNDS} rounds of {args.calls} calls, measured {len(args.seeds)} times."
    table = markdown(("decision", "µs"), rows)
    section = Section("Decisions: policies, placement and roles", method, (), (table,), {"us": found})
    return report(args, [section])
