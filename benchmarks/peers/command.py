"""Measure Baton's router and gateway beside Dynamo's frontend, in turns on one machine.

    python -m benchmarks peers --seeds 1,2,3

All have the demo model's tokenizer, and workers that compute nothing: Baton's keep the times of a profile,
Dynamo's mocker keeps its own, so times to the first token are of different workers. CPU is that of the
processes between client and worker. The client shares the machine. Dynamo is installed into .venv-peers; if
that fails, Baton is measured alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.doors.arms import Run, by_turns
from benchmarks.peers.baton_arm import baton, two_processes
from benchmarks.peers.dynamo_arm import dynamo
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.loads import RATES, STREAMS, Load, play
from benchmarks.report import report
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cell

Rounds = dict[str, list[Run]]
"""By arm, one for each seed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="the smallest load of each kind only")


def run(args: argparse.Namespace) -> int:
    loads = (STREAMS[1], RATES[0]) if args.quick else STREAMS + RATES
    rounds, note = asyncio.run(_measure(args.model, loads, args.seeds))
    return report(args, sections(loads, rounds, note))


async def _measure(
    model: Path, loads: Sequence[Load], seeds: Sequence[int]
) -> tuple[dict[Load, Rounds], str]:
    rounds: dict[Load, Rounds] = {load: {} for load in loads}
    note = "Client, frontends and workers share the machine."
    async with AsyncExitStack() as stack:
        arms = await stack.enter_async_context(baton(model))
        arms += await stack.enter_async_context(two_processes(model))
        try:
            arms.append(await stack.enter_async_context(dynamo(model)))
        except (NotInstalled, TimeoutError) as error:
            note += f" Dynamo is missing: {error}"
            print(note, file=sys.stderr)
        # The first requests of a process load what it needs.
        for arm in arms:
            await play(arm, STREAMS[0], 0)
        for seed in tracked(seeds, "peers"):
            for load in loads:
                for arm in by_turns(arms, seed):
                    rounds[load].setdefault(arm.name, []).append(await play(arm, load, seed))
    return rounds, note


def sections(loads: Sequence[Load], rounds: dict[Load, Rounds], note: str) -> Iterator[Section]:
    """Yield streams, then requests, with everything measured as data."""
    for title, is_streams, unit in (("Streams", True, "µs a token"), ("Requests", False, "ms a request")):
        own_loads = [load for load in loads if load.is_streams is is_streams]
        rows = [
            (load.name, arm, *(column(load, runs) for column in _COLUMNS.values()))
            for load in own_loads
            for arm, runs in rounds[load].items()
        ]
        header = ("load", "arm", f"CPU, {unit}", *list(_COLUMNS)[1:])
        data = {
            load.name: {arm: list(map(asdict, runs)) for arm, runs in rounds[load].items()}
            for load in own_loads
        }
        yield Section(title, note, (), (markdown(header, rows),), {"loads": data})


def _cost(load: Load, runs: Sequence[Run]) -> str:
    costs = [load.cost(run) for run in runs]
    spec = ".0f" if load.is_streams else ".1f"
    parts = [cell([sum(cost.values()) for cost in costs], spec=spec)]
    if len(costs[0]) > 1:
        parts += [f"{name} {cell([cost[name] for cost in costs], spec=spec)}" for name in costs[0]]
    return "; ".join(parts)


def _over(figure: Callable[[Load, Run], float], spec: str = ".0f") -> Callable[[Load, Sequence[Run]], str]:
    def shown(load: Load, runs: Sequence[Run]) -> str:
        return cell([figure(load, run) for run in runs if run.ttft_ms], spec=spec)

    return shown


_COLUMNS: dict[str, Callable[[Load, Sequence[Run]], str]] = {
    "CPU": _cost,
    "TTFT P50, ms": _over(lambda _, run: quantile(run.ttft_ms, 0.5)),
    "TTFT max, ms": _over(lambda _, run: max(run.ttft_ms)),
    "tokens/s": _over(Load.tokens_per_s),
    "memory, MB": _over(lambda _, run: run.memory_mb),
    "not served": lambda _, runs: str(sum(run.num_requests - len(run.ttft_ms) for run in runs)),
}
