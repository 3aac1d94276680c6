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
from dataclasses import dataclass, field
from pathlib import Path

from baton import AsyncClient, Finished, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec, ManagedProcess
from baton.snapshots import Role
from benchmarks.flags import add_model_flag, add_shared_flags
from benchmarks.telling import Telling
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown

STREAMS = 6
TOKENS = 300
PROMPT_TOKENS = 200
STRIKE_AT = 60
"""Tokens of every stream before the signal."""
EXIT_GOAL_S = 5.0


@dataclass(slots=True)
class Stream:
    """When each event with tokens came, and the tokens."""

    at_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    attempts: int = 0

    def gaps(self, begin_s: float, end_s: float) -> list[float]:
        """Between events, as far as they end within a time."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return [after - before for before, after in pairs if begin_s <= after and before <= end_s]


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
    parser.add_argument("--streams", type=int, default=STREAMS, metavar="N", help=f"at once ({STREAMS})")
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
    # Sameness is exact in 64 bits; in 32 a batch of another size changes a last bit now and then.
    exact = ("--dtype", "float64")
    spec = FleetSpec(
        model=model, decode=2, extra_args={"prefill": exact, "decode": exact}, start_timeout_s=180.0
    )
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        prompts = [
            [3 + (seed * 31 + one * 7 + i) % 900 for i in range(PROMPT_TOKENS)] for one in range(num_streams)
        ]
        undisturbed = await _play(client, prompts, seed, None)
        struck = _Strike(fleet, client, num_streams)
        streams = await _play(client, prompts, seed, struck)
        assert struck.began_s is not None
        assert struck.leaving is not None
        exit_s = await struck.exited
        begin_s, end_s = struck.began_s, struck.began_s + exit_s
        return Run(
            before_s=tuple(gap for one in streams for gap in one.gaps(0.0, begin_s)),
            pauses_s=tuple(max(one.gaps(begin_s, end_s)) for one in streams if one.attempts > 1),
            exit_s=exit_s,
            changed=sum(a.token_ids != b.token_ids for a, b in zip(streams, undisturbed, strict=True)),
        )


class _Strike:
    """Comes once every stream has come far enough."""

    def __init__(self, fleet: Fleet, client: AsyncClient, num_streams: int) -> None:
        self.began_s: float | None = None
        self.leaving: ManagedProcess | None = None
        self.exited: asyncio.Task[float]
        self._fleet = fleet
        self._client = client
        self._missing = num_streams

    async def one_is_ready(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        watch = self._client.watch(0.1)
        workers = (await anext(watch)).workers
        await watch.aclose()
        busiest = max((one for one in workers if one.role is Role.DECODE), key=lambda one: one.running)
        self.leaving = self._fleet.process(busiest.worker_id)
        self.began_s = time.monotonic()
        self.leaving.terminate()
        self.exited = asyncio.create_task(self._time_to_exit(self.leaving, self.began_s))

    @staticmethod
    async def _time_to_exit(process: ManagedProcess, began_s: float) -> float:
        await process.wait()
        return time.monotonic() - began_s


async def _play(
    client: AsyncClient, prompts: Sequence[list[int]], seed: int, strike: _Strike | None
) -> list[Stream]:
    async def one(prompt: list[int]) -> Stream:
        stream = Stream()
        is_ready = False
        sampling = Sampling(temperature=1.0, seed=seed)
        async for event in client.generate(
            prompt, sampling=sampling, stop=Stop(max_tokens=TOKENS, ignore_eos=True)
        ):
            if isinstance(event, Finished):
                stream.attempts = event.usage.attempts
            if not isinstance(event, Tokens):
                continue
            stream.at_s.append(time.monotonic())
            stream.token_ids += event.token_ids
            if strike is not None and not is_ready and len(stream.token_ids) >= STRIKE_AT:
                is_ready = True
                await strike.one_is_ready()
        return stream

    return await asyncio.gather(*(one(prompt) for prompt in prompts))
