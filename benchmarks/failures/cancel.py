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
from benchmarks.flags import add_model_flag, add_shared_flags, count
from benchmarks.report import report
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
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

    freed_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Seconds by phase and way."""
    alone_s: list[float] = field(default_factory=list)
    """TTFT of a request with nothing ahead."""
    behind_s: dict[str, list[float]] = field(default_factory=dict)
    """TTFT of a request sent at the moment another one was ended, by that one's phase and way."""
    tokenising_s: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trials",
        type=count,
        default=TRIALS,
        metavar="N",
        help=f"trials of a kind, for each seed ({TRIALS})",
    )
    add_model_flag(parser)
    add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    return report(args, [section_of(asyncio.run(_measure(args.model, args.trials, args.seeds)))])


async def _measure(model: Path, trials: int, seeds: Sequence[int]) -> list[Round]:
    with tempfile.TemporaryDirectory(prefix="baton-cancel-") as folder, progress_bars() as progress:
        bar = progress.add_task("cancel", total=len(seeds) * trials * (len(CELLS) + len(STRUCK_BEFORE)))
        async with started(model, Path(folder)) as scene:
            return [await one_round(scene, trials, seed, lambda: progress.advance(bar)) for seed in seeds]


async def one_round(scene: Scene, trials: int, seed: int, done: Callable[[], None]) -> Round:
    """Try every kind in turn, so that changes of the machine affect all alike."""
    rng, found = random.Random(seed), Round(tokenising_s=scene.tokenising_s)
    for _ in range(trials):
        for phase, way in CELLS:
            freed_s = await _until_it_is_met(scene, phase, way, rng)
            found.freed_s.setdefault(phase, {}).setdefault(way, []).append(freed_s)
            done()
        for phase, way in STRUCK_BEFORE:
            found.alone_s.append(await scene.ttft(rng, NEXT_TOKENS))
            behind_s = await scene.ttft_behind(rng, NEXT_TOKENS, phase, way)
            found.behind_s.setdefault(f"{way} in the {phase}", []).append(behind_s)
            done()
    return found


async def _until_it_is_met(scene: Scene, phase: Phase, way: Way, rng: random.Random) -> float:
    for _ in range(TRIES):
        struck = await scene.trial(phase, way, rng)
        if struck.told in (phase, None):
            return struck.freed_s
    raise ValueError(f"{TRIES} requests were ended by their {way} in another phase than the {phase}")


def section_of(rounds: Sequence[Round]) -> Section:
    """Return goals by phase, and a table by phase and way."""
    goals = [_goal(phase, rounds) for phase in Phase]
    later = tuple(
        quantile([taken for ones in round_.behind_s.values() for taken in ones], 0.5)
        - quantile(round_.alone_s, 0.5)
        for round_ in rounds
    )
    goals.append(
        Goal(
            "next request: ms later than alone, median",
            _ms(later),
            CHUNK_S * 1000,
            at_least=False,
            spec=".0f",
        )
    )
    header = ("phase", *(f"{way}, P50 / P99 ms" for way in Way), "one step or chunk, ms")
    rows = [
        (phase, *(p50_p99(_all(rounds, phase, way)) for way in Way), f"{_step_s(phase, rounds) * 1000:.0f}")
        for phase in Phase
    ]
    alone = [taken for round_ in rounds for taken in round_.alone_s]
    next_rows = [("nothing", p50_p99(alone))]
    next_rows += [
        (name, p50_p99([s for round_ in rounds for s in round_.behind_s[name]]))
        for name in rounds[0].behind_s
    ]
    tables = (markdown(header, rows), markdown(("before it", "TTFT, P50 / P99 ms"), next_rows))
    method = (
        f"From the end of the request until nothing is held. Bounds are one step or chunk and "
        f"{MESSAGES_S * 1000:.0f} ms for messages; goals are the P99 of all ways in a seed."
    )
    return Section(
        "Cancel, deadline and disconnect",
        method,
        tuple(goals),
        tables,
        {"rounds": [asdict(round_) for round_ in rounds]},
    )


def _goal(phase: Phase, rounds: Sequence[Round]) -> Goal:
    worst = [
        quantile([taken for ones in round_.freed_s[phase].values() for taken in ones], 0.99)
        for round_ in rounds
    ]
    bound = (_step_s(phase, rounds) + MESSAGES_S) * 1000
    return Goal(f"{phase}: P99 ms until free", _ms(worst), bound, at_least=False, spec=".0f")


def _step_s(phase: Phase, rounds: Sequence[Round]) -> float:
    """Return how long work runs on once it has begun: a step or chunk; 0 for a request in the queue."""
    match phase:
        case Phase.QUEUE:
            return 0.0
        case Phase.TOKENISING:
            return max(round_.tokenising_s for round_ in rounds)
        case Phase.PREFILL:
            return CHUNK_S
        case Phase.HANDOFF | Phase.DECODE | Phase.RELAY:
            return STEP_S


def _all(rounds: Sequence[Round], phase: Phase, way: Way) -> list[float]:
    return [taken for round_ in rounds for taken in round_.freed_s[phase].get(way, ())]


def _ms(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(taken * 1000 for taken in seconds)
