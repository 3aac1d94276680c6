"""Measure the pause of streams when a decode worker leaves, and its time to exit.

    python -m benchmarks leaving --streams 8 --seeds 1,2,3

A fleet of the demo model has one prefill worker and two decode workers. Streams run; then the decode worker
with more of them gets SIGTERM. The pause of a stream is its longest gap from that moment until the worker has
ended; it is compared with all gaps before. Only streams that moved count. A stream that breaks, or whose
tokens differ from those of the undisturbed run, fails the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec, ManagedProcess
from benchmarks.failures.streams import EXACT, Wave, play, prompts_of, wave
from benchmarks.flags import count
from benchmarks.fleets.observe import busiest_decoder
from benchmarks.report import report
from reporting.progress import tracked
from reporting.section import Section, at_most, table
from reporting.tables import p50_p99

STREAMS = 6
TOKENS = 300
PROMPT_TOKENS = 200
EXIT_GOAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """One worker leaving. Times in seconds."""

    wave: Wave
    exit_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=count, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )


def run(args: argparse.Namespace) -> int:
    seeds = tracked(args.seeds, "leaving")
    runs = [asyncio.run(measure(args.model, args.streams, seed)) for seed in seeds]
    return report(args, [section_of(runs)])


def section_of(runs: Sequence[Run]) -> Section:
    columns = {
        "run": lambda left: f"{runs.index(left) + 1} ({len(left.wave.pauses_s)} moved)",
        "gap before, P50 / P99 ms": lambda left: p50_p99(left.wave.before_s),
        "pause, P50 / P99 ms": lambda left: p50_p99(left.wave.pauses_s),
        "exit, ms": lambda left: f"{left.exit_s * 1000:.0f}",
    }
    return Section(
        "A decode worker leaves",
        "The longest gap of each stream that moved, from the signal to the exit, beside all gaps before.",
        (
            at_most("streams broken or changed", (left.wave.changed for left in runs), 0),
            at_most("seconds to exit", (left.exit_s for left in runs), EXIT_GOAL_S),
        ),
        (table(runs, columns),),
    )


async def measure(model: Path, num_streams: int, seed: int) -> Run:
    """Start a fleet, and let a decode worker leave."""
    spec = FleetSpec(
        model=model, decode=2, extra_args={"prefill": EXACT, "decode": EXACT}, standstill_s=180.0
    )
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        prompts = prompts_of(num_streams, PROMPT_TOKENS, seed)
        undisturbed = await play(client, prompts, TOKENS, seed)
        began_s, exited = 0.0, asyncio.get_running_loop().create_future()

        async def leave() -> None:
            nonlocal began_s, exited
            leaving = fleet.process(await busiest_decoder(client))
            began_s = time.monotonic()
            leaving.terminate()
            exited = asyncio.create_task(_exited_at(leaving))

        streams = await play(client, prompts, TOKENS, seed, leave)
        ended_s = await exited
        moved = [stream for stream in streams if stream.attempts > 1]
        return Run(wave(streams, undisturbed, moved, began_s, ended_s), ended_s - began_s)


async def _exited_at(process: ManagedProcess) -> float:
    await process.wait()
    return time.monotonic()
