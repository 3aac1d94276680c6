"""What a decode worker's leaving costs its streams: the pause that clients see, and its time to exit.

    python -m benchmarks leaving --streams 8 --seeds 1,2,3

A fleet of the demo model, one prefill worker and two decode workers. Streams run; then the decode worker with
more of them is sent SIGTERM. The pause of a stream is its longest gap from that moment until the worker has
ended; it is compared with all gaps before. Only streams that moved are counted. One that breaks, or whose
tokens are not those of the undisturbed run, fails the measurement.
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
from benchmarks.failures.streams import EXACT, num_changed, play, prompts_of
from benchmarks.flags import add_model_flag, add_shared_flags
from benchmarks.fleets.observe import busiest_decoder
from benchmarks.telling import Telling
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown

STREAMS = 6
TOKENS = 300
PROMPT_TOKENS = 200
EXIT_GOAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """One leaving. Times in seconds."""

    before_s: tuple[float, ...]
    """All gaps until the signal."""
    pauses_s: tuple[float, ...]
    """The longest gap of each stream that moved, from the signal to the exit."""
    exit_s: float
    changed: int
    """Streams whose tokens were not those of the undisturbed run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )
    add_model_flag(parser)
    add_shared_flags(parser, seeds=(1, 2, 3))


def run(args: argparse.Namespace) -> int:
    if args.streams < 1:
        raise ValueError(f"--streams is {args.streams}; accepted: 1 or more")
    telling = Telling(args)
    runs = [asyncio.run(measure(args.model, args.streams, seed)) for seed in args.seeds]
    telling.add(section_of(runs))
    return telling.end()


def section_of(runs: Sequence[Run]) -> Section:
    rows = [
        (
            f"{number} ({len(one.pauses_s)} moved)",
            f"{quantile(one.before_s, 0.5) * 1000:.0f} / {quantile(one.before_s, 0.99) * 1000:.0f}",
            f"{quantile(one.pauses_s, 0.5) * 1000:.0f} / {quantile(one.pauses_s, 0.99) * 1000:.0f}",
            f"{one.exit_s * 1000:.0f}",
        )
        for number, one in enumerate(runs, 1)
    ]
    return Section(
        "A decode worker leaves",
        "The longest gap of each stream that moved, from the signal to the exit, beside all gaps before.",
        (
            Goal("streams broken or changed", tuple(float(one.changed) for one in runs), 0, at_least=False),
            Goal("seconds to exit", tuple(one.exit_s for one in runs), EXIT_GOAL_S, at_least=False),
        ),
        (markdown(("run", "gap before, P50 / P99 ms", "pause, P50 / P99 ms", "exit, ms"), rows),),
    )


async def measure(model: Path, num_streams: int, seed: int) -> Run:
    """One fleet, one leaving."""
    spec = FleetSpec(
        model=model, decode=2, extra_args={"prefill": EXACT, "decode": EXACT}, standstill_s=180.0
    )
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        prompts = prompts_of(num_streams, PROMPT_TOKENS, seed)
        undisturbed = await play(client, prompts, TOKENS, seed)
        struck = _Strike(fleet, client)
        streams = await play(client, prompts, TOKENS, seed, struck.strike)
        exit_s = await struck.exited
        begin_s, end_s = struck.began_s, struck.began_s + exit_s
        return Run(
            before_s=tuple(gap for one in streams for gap in one.gaps(0.0, begin_s)),
            pauses_s=tuple(max(one.gaps(begin_s, end_s)) for one in streams if one.attempts > 1),
            exit_s=exit_s,
            changed=num_changed(streams, undisturbed),
        )


class _Strike:
    """The signal, and how long the worker takes to end after it."""

    def __init__(self, fleet: Fleet, client: AsyncClient) -> None:
        self.began_s = 0.0
        self.exited: asyncio.Task[float]
        self._fleet = fleet
        self._client = client

    async def strike(self) -> None:
        leaving = self._fleet.process(await busiest_decoder(self._client))
        self.began_s = time.monotonic()
        leaving.terminate()
        self.exited = asyncio.create_task(self._time_to_exit(leaving, self.began_s))

    @staticmethod
    async def _time_to_exit(process: ManagedProcess, began_s: float) -> float:
        await process.wait()
        return time.monotonic() - began_s
