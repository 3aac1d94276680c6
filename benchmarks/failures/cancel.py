"""Measure what a request ended from outside still holds, and for how long: in every phase, in every way.

    python -m benchmarks cancel --trials 3 --seeds 1,2,3,4,5

The fleet has timed workers with slow steps, and one decode seat. Requests are brought one by one to a phase:
in the queue (another one has the seat), being tokenised (a long text is ahead), in the prefill, in the
handoff (the first token is out, the decode worker has not reported yet), in the decode, and in the relay (the
client has stopped reading, and tokens wait for it in the router). There they are cancelled, or their deadline
passes, or their call breaks. Measured is the time from that moment, at the client, until the workers count
all blocks free and Redis has no place, grant, credit or lease. A request that is being tokenised holds
nothing yet, so its time is until its call has ended; a broken call has ended at once.

The time may be as long as one step or chunk, which is not aborted, plus the time of messages. A request sent
at the moment another one is ended must not wait for it: its TTFT is compared with that of requests alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.failures.cancel_scene import CHUNK_S, STEP_S, Phase, Scene, Way, started
from benchmarks.flags import count
from benchmarks.report import report
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Section, at_most, markdown
from reporting.tables import p50_p99

TRIALS = 3
MESSAGES_S = 0.025
"""Seconds that router, workers and Redis may need for messages, on a machine with other load."""
TRIES = 5
"""Deadlines are set beforehand: one that passes in another phase is tried again."""
NEXT_TOKENS = 128
CELLS = [(phase, way) for phase in Phase for way in Way if (phase, way) != (Phase.TOKENISING, Way.DISCONNECT)]
STRUCK_BEFORE = [
    (phase, way) for phase in (Phase.PREFILL, Phase.DECODE) for way in (Way.CANCEL, Way.DISCONNECT)
]


@dataclass(slots=True)
class Round:
    """One seed's trials. Times in seconds."""

    tokenising_s: float
    freed_s: list[tuple[Phase, Way, float]] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    """TTFT of a request with nothing ahead."""
    behind_s: list[tuple[Phase, Way, float]] = field(default_factory=list)
    """TTFT of a request sent at the moment another one was ended, by that one's phase and way."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    trials = f"trials of a kind, for each seed ({TRIALS})"
    parser.add_argument("--trials", type=count, default=TRIALS, metavar="N", help=trials)


def run(args: argparse.Namespace) -> int:
    return report(args, [section_of(asyncio.run(_measure(args.model, args.trials, args.seeds)))])


async def _measure(model: Path, trials: int, seeds: Sequence[int]) -> list[Round]:
    with tempfile.TemporaryDirectory(prefix="baton-cancel-") as folder, progress_bars() as progress:
        bar = progress.add_task("cancel", total=len(seeds) * trials * (len(CELLS) + len(STRUCK_BEFORE)))
        async with started(model, Path(folder)) as scene:
            return [await one_round(scene, trials, seed, lambda: progress.advance(bar)) for seed in seeds]


async def one_round(scene: Scene, trials: int, seed: int, done: Callable[[], None]) -> Round:
    """Try every kind in turn, so that changes of the machine affect all alike."""
    rng, found = random.Random(seed), Round(scene.tokenising_s)
    for _ in range(trials):
        for phase, way in CELLS:
            found.freed_s.append((phase, way, await _until_it_is_met(scene, phase, way, rng)))
            done()
        for phase, way in STRUCK_BEFORE:
            found.alone_s.append(await scene.ttft(rng, NEXT_TOKENS))
            found.behind_s.append((phase, way, await scene.ttft_behind(rng, NEXT_TOKENS, phase, way)))
            done()
    return found


async def _until_it_is_met(scene: Scene, phase: Phase, way: Way, rng: random.Random) -> float:
    for _ in range(TRIES):
        freed_s = await scene.trial(phase, way, rng)
        if freed_s is not None:
            return freed_s
    raise ValueError(f"{TRIES} requests were ended by their {way} in another phase than the {phase}")


def section_of(rounds: Sequence[Round]) -> Section:
    """Return goals by phase, and a table by phase and way."""
    # How long work runs on once it has begun: a step or chunk.
    bounds_s = dict.fromkeys(Phase, STEP_S) | {
        Phase.QUEUE: 0.0,
        Phase.TOKENISING: max(round_.tokenising_s for round_ in rounds),
        Phase.PREFILL: CHUNK_S,
    }
    goals = [
        at_most(
            f"{phase}: P99 ms until free",
            [
                quantile([1000 * s for found, _, s in round_.freed_s if found is phase], 0.99)
                for round_ in rounds
            ],
            (bound_s + MESSAGES_S) * 1000,
            ".0f",
        )
        for phase, bound_s in bounds_s.items()
    ]
    later_ms = [
        1000 * (quantile([s for _, _, s in round_.behind_s], 0.5) - quantile(round_.alone_s, 0.5))
        for round_ in rounds
    ]
    goals.append(at_most("next request: ms later than alone, median", later_ms, CHUNK_S * 1000, ".0f"))

    freed = [trial for round_ in rounds for trial in round_.freed_s]
    behind = [trial for round_ in rounds for trial in round_.behind_s]
    rows = [
        (phase, *(_p50_p99(freed, phase, way) for way in Way), f"{bound_s * 1000:.0f}")
        for phase, bound_s in bounds_s.items()
    ]
    next_rows = [("nothing", p50_p99([s for round_ in rounds for s in round_.alone_s]))]
    next_rows += [(f"{way} in the {phase}", _p50_p99(behind, phase, way)) for phase, way in STRUCK_BEFORE]
    header = ("phase", *(f"{way}, P50 / P99 ms" for way in Way), "one step or chunk, ms")
    tables = (markdown(header, rows), markdown(("before it", "TTFT, P50 / P99 ms"), next_rows))
    method = (
        f"From the end of the request until nothing is held. Bounds are one step or chunk and "
        f"{MESSAGES_S * 1000:.0f} ms for messages; goals are the P99 of all ways in a seed."
    )
    data = {"rounds": [asdict(round_) for round_ in rounds]}
    return Section("Cancel, deadline and disconnect", method, tuple(goals), tables, data)


def _p50_p99(trials: Sequence[tuple[Phase, Way, float]], phase: Phase, way: Way) -> str:
    return p50_p99([s for *kind, s in trials if kind == [phase, way]])
