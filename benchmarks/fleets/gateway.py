"""Measure what the HTTP gateway costs: time to the first token beside gRPC, and processor time per token.

    python -m benchmarks gateway --seeds 1,2,3 --against ../other-checkout

One fleet of the demo model serves everything. TTFT: the same completion of 8 tokens over gRPC (the SDK) and
over HTTP (a plain socket that is kept open), in turns, so that changes of the machine affect all alike.
Processor time: that of the gateway's process, all threads, from before to after a number of streams at once,
for each token they brought. With `--timed`, workers take the time of a profile and not the cores that the
gateway needs. With `--against`, the gateway of another checkout is measured in the same turns.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from benchmarks.doors.observe import memory_and_cpu
from benchmarks.doors.plain import PlainCaller
from benchmarks.flags import count
from benchmarks.report import report
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, at_most, markdown
from sim.reporting.tables import cell

CALLS = 100
"""TTFTs of each kind, for each seed."""
STREAMS = (1, 16, 64)
TOKENS = 200
PROMPT = "import asyncio\n"
TTFT_GOAL_MS = 1.0
HERE = Path(__file__).parents[2]


@dataclass(slots=True)
class Round:
    """One seed: milliseconds to the first token over gRPC and each gateway; µs a token by streams at once."""

    grpc_ms: list[float] = field(default_factory=list)
    http_ms: dict[str, list[float]] = field(default_factory=dict)
    token_us: dict[str, dict[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Door:
    """A gateway that is measured."""

    name: str
    pid: int
    address: str

    def cpu_s(self) -> float:
        """Return the processor time that its process has used."""
        return memory_and_cpu(self.pid)[1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--calls", type=count, default=CALLS, metavar="N", help=f"TTFTs of each kind, a seed ({CALLS})")
    add("--timed", metavar="PROFILE", help="workers compute nothing: what they take of the cores is left out")
    add("--against", type=Path, metavar="PATH", help="another checkout, whose gateway takes turns")


def run(args: argparse.Namespace) -> int:
    checkouts = {"this": HERE} | ({"other": args.against} if args.against else {})
    spec = FleetSpec(model=args.model, timed=args.timed)
    return report(args, [section_of(asyncio.run(_measure(spec, checkouts, args.calls, args.seeds)))])


async def _measure(
    spec: FleetSpec, checkouts: dict[str, Path], num_calls: int, seeds: Sequence[int]
) -> list[Round]:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(spec))
        sdk = await stack.enter_async_context(AsyncClient(fleet.router_addresses))
        doors = [
            await stack.enter_async_context(started(name, checkout, fleet.router_addresses))
            for name, checkout in checkouts.items()
        ]
        return [await one_round(sdk, doors, num_calls, seed) for seed in tracked(seeds, "gateway")]


@asynccontextmanager
async def started(name: str, checkout: Path, routers: Sequence[str]) -> AsyncIterator[Door]:
    """Run the gateway of a checkout, with this environment's packages."""
    router_flags = [part for router in routers for part in ("--router", router)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--log-level", "error", *router_flags),
        cwd=checkout,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ready = re.match(r"READY gateway address=(\S+)", (await process.stdout.readline()).decode())
        if ready is None:
            raise ValueError(f"{checkout} has no gateway that starts")
        yield Door(name, process.pid, ready[1])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def one_round(sdk: AsyncClient, doors: Sequence[Door], num_calls: int, seed: int) -> Round:
    result = Round(http_ms={door.name: [] for door in doors}, token_us={door.name: {} for door in doors})
    async with AsyncExitStack() as stack:
        callers = {
            door.name: await stack.enter_async_context(PlainCaller.connected(door.address)) for door in doors
        }
        for call in range(num_calls):
            prompt = f"{PROMPT}# {seed} {call}\n"
            result.grpc_ms.append(1000 * await _grpc_ttft_s(sdk, prompt))
            for name, caller in callers.items():
                result.http_ms[name].append(1000 * await caller.play(_body(prompt, 8)))
    for number in STREAMS:
        for door in doors:
            before = door.cpu_s()
            # One stream brings too few tokens for a clock of 10 ms.
            for _ in range(max(1, 8 // number)):
                await asyncio.gather(*(_stream(door, f"{PROMPT}# {seed} {index}") for index in range(number)))
            tokens = TOKENS * number * max(1, 8 // number)
            result.token_us[door.name][number] = 1e6 * (door.cpu_s() - before) / tokens
    return result


async def _grpc_ttft_s(sdk: AsyncClient, prompt: str) -> float:
    start_s, ttft_s = time.perf_counter(), 0.0
    stop = Stop(max_tokens=8, ignore_eos=True)
    async for event in sdk.generate(prompt, sampling=Sampling(temperature=0), stop=stop):
        if isinstance(event, Tokens) and not ttft_s:
            ttft_s = time.perf_counter() - start_s
    return ttft_s


async def _stream(door: Door, prompt: str) -> None:
    async with PlainCaller.connected(door.address) as caller:
        await caller.play(_body(prompt, TOKENS))


def _body(prompt: str, num_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}


def _later_ms(http_ms: Sequence[float], grpc_ms: Sequence[float]) -> list[float]:
    """Return how much later each call over HTTP was than the one over gRPC just before it.

    The machine may change between the calls of a round, but hardly between two neighbours.
    """
    return [http - grpc for http, grpc in zip(http_ms, grpc_ms, strict=True)]


def section_of(rounds: Sequence[Round]) -> Section:
    """Return the goal for this checkout, and a table with every gateway."""
    names = list(rounds[0].http_ms)
    later_ms = {
        name: [quantile(_later_ms(each.http_ms[name], each.grpc_ms), 0.5) for each in rounds]
        for name in names
    }
    grpc = cell([quantile(each.grpc_ms, 0.5) for each in rounds], spec=".1f")
    rows = [
        (
            name,
            cell([quantile(each.http_ms[name], 0.5) for each in rounds], spec=".1f"),
            cell(later_ms[name], spec=".2f"),
            *(cell([each.token_us[name][number] for each in rounds], spec=".0f") for number in STREAMS),
        )
        for name in names
    ]
    columns = (f"CPU of the gateway, µs a token, {number} at once" for number in STREAMS)
    header = ("gateway", "TTFT P50, ms", "later than gRPC, ms", *columns)
    return Section(
        "The gateway",
        f"TTFT P50 over gRPC {grpc} ms; client, gateway, router and workers share the machine.",
        (at_most("TTFT over HTTP later than over gRPC, P50 of pairs, ms", later_ms["this"], TTFT_GOAL_MS),),
        (markdown(header, rows),),
        {"rounds": [asdict(each) for each in rounds]},
    )
