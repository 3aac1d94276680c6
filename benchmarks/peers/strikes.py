"""Measure what streams survive, in Baton and in Dynamo, when a process dies or stands still.

    python -m benchmarks strikes --seeds 1,2,3

Each strike has a fleet of its own with two workers that compute nothing. Streams run side by side; once each
has begun, one process gets SIGKILL, or SIGSTOP until the end. A stream is whole if all of its tokens and its
end came within a minute after that. Baton's streams are compared with an undisturbed run, token for token or,
over HTTP, as text. Those of Dynamo's mocker are random, so only their number of tokens is known. Dynamo
migrates a request up to three times (`--migration-limit 3`); without this flag it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from baton import BatonError
from benchmarks.doors.http import HttpError
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.struck import STRIKES, Stream, Strike, Struck
from benchmarks.report import report
from sim.reporting.progress import tracked
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cell

STREAMS = 16
TOKENS = 1000
BEGUN = 20
"""Pieces of text that each stream has when the process is struck."""
LIMIT_S = 60.0


@dataclass(slots=True)
class Output:
    """The pieces that one stream brought, and when each came, on the monotonic clock."""

    at_s: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Survival:
    """The streams of one strike."""

    whole: int
    changed: int | None
    """Whole streams that differ from the undisturbed ones; None if outputs are random."""
    longest_gap_s: float
    """The longest time between two pieces of a whole stream, after the strike."""
    errors: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, default=STREAMS, metavar="N", help=f"streams at once ({STREAMS})"
    )


def run(args: argparse.Namespace) -> int:
    if args.streams < 2:
        raise ValueError(f"--streams is {args.streams}; accepted: 2 or more, one for each worker")
    survivals_by_strike, note = asyncio.run(_measure(args.model, args.streams, args.seeds))
    return report(args, [section_of(args.streams, survivals_by_strike, note)])


async def _measure(
    model: Path, num_streams: int, seeds: Sequence[int]
) -> tuple[dict[Strike, list[Survival]], str]:
    survivals_by_strike: dict[Strike, list[Survival]] = {}
    note = f"{num_streams} streams of {TOKENS} tokens; two workers."
    for seed in tracked(seeds, "strikes"):
        for strike in STRIKES:
            try:
                async with strike.started(model, seed, TOKENS) as target:
                    survivals_by_strike.setdefault(strike, []).append(await survive(target, num_streams))
            except NotInstalled as error:
                if str(error) not in note:
                    note += f" Dynamo is missing: {error}"
                    print(error, file=sys.stderr)
    return survivals_by_strike, note


async def survive(target: Struck, num_streams: int) -> Survival:
    """Play the streams undisturbed if their outputs can be compared, then with the strike."""
    undisturbed = await play(target.stream, num_streams) if target.is_deterministic else None
    struck_at = 0.0

    async def strike() -> None:
        nonlocal struck_at
        await target.strike()
        struck_at = time.monotonic()

    outputs = await play(target.stream, num_streams, strike)
    whole = [output for output in outputs if not output.error]
    after_strike = [
        after - before
        for output in whole
        for before, after in itertools.pairwise(output.at_s)
        if after >= struck_at
    ]
    changed = None
    if undisturbed is not None:
        pairs = zip(outputs, undisturbed, strict=True)
        changed = sum("".join(a.pieces) != "".join(b.pieces) for a, b in pairs if not a.error)
    errors = tuple(sorted({output.error for output in outputs} - {""}))
    return Survival(len(whole), changed, max(after_strike, default=0.0), errors)


async def play(
    stream: Stream, num_streams: int, strike: Callable[[], Awaitable[None]] | None = None
) -> list[Output]:
    """Run the streams to their ends; call `strike` once each has begun, and cut what then takes too long."""
    not_begun, is_struck = set(range(num_streams)), asyncio.Event()

    async def one(index: int) -> Output:
        output = Output()
        try:
            async with aclosing(stream(index)) as pieces:
                async for piece in pieces:
                    output.at_s.append(time.monotonic())
                    output.pieces.append(piece)
                    if len(output.pieces) == BEGUN:
                        not_begun.discard(index)
                        if strike is not None and not not_begun:
                            await strike()
                            is_struck.set()
        except (BatonError, HttpError) as error:
            output.error = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            output.error = f"not whole after {LIMIT_S:g} s"
        return output

    streams = [asyncio.create_task(one(index)) for index in range(num_streams)]
    if strike is not None:
        await asyncio.wait_for(is_struck.wait(), LIMIT_S)
    _, late = await asyncio.wait(streams, timeout=LIMIT_S)
    for task in late:
        task.cancel()
    return await asyncio.gather(*streams)


def section_of(num_streams: int, survivals_by_strike: dict[Strike, list[Survival]], note: str) -> Section:
    """Return a row for each strike, with every figure as data."""
    header = ("struck", "arm", f"whole of {num_streams}", "changed", "longest gap, s")
    rows = [
        (
            f"{strike.process} {strike.how}",
            strike.arm,
            cell([each.whole for each in survivals], spec=".0f"),
            _changed(survivals),
            cell([each.longest_gap_s for each in survivals if each.whole]),
        )
        for strike, survivals in survivals_by_strike.items()
    ]
    data = {
        f"{strike.arm}: {strike.process} {strike.how}": list(map(asdict, each))
        for strike, each in survivals_by_strike.items()
    }
    return Section("Streams under strikes", note, (), (markdown(header, rows),), {"strikes": data})


def _changed(survivals: Sequence[Survival]) -> str:
    """Return a dash where no stream is whole, and so none could have changed."""
    counts = [each.changed for each in survivals if each.changed is not None]
    if not counts:
        return "random"
    return str(sum(counts)) if any(each.whole for each in survivals) else "-"
