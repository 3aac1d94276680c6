"""Send thousands of requests in one moment, and say what became of them and of a neighbour's requests.

    python -m benchmarks burst --seeds 1,2,3

A process of its own sends requests of 2 tokens over several connections to a timed fleet of one router. A
neighbour, over a connection of its own, sends one after the other meanwhile: first alone, then from the
moment in which the others are sent until the last of them has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from baton import BatonError
from baton.errors import Overloaded
from baton.fleet import Fleet, FleetSpec
from baton.wire.transport import GrpcTransport
from benchmarks.doors.observe import memory_and_cpu
from benchmarks.flags import count
from benchmarks.peers.baton_arm import PROFILE, by_grpc
from benchmarks.report import report
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cells

REQUESTS, CONNECTIONS = 10_000, 10
PROMPT_TOKENS = 50
TOKEN_IDS = (100, 2000)
"""The range from which tokens are drawn, within the vocabulary of the demo model."""
ALONE = 50
"""Requests of the neighbour before the others are sent."""
LOOK_S = 0.2
SPECS = (".0f", ".0f", ".0f", ".1f", ".0f", ".0f", ".0f", ".2f", ".0f")


@dataclass(frozen=True, slots=True)
class Burst:
    """The results of one seed. Times in seconds."""

    ends: Counter[str]
    """How the requests ended: `served`, `refused` for load, or the name of an error."""
    seconds: float
    """From the first one's sending to the last one's end."""
    alone_s: list[float]
    """The neighbour's requests before."""
    beside_s: list[float]
    """Those that it sent meanwhile."""
    memory_mb: float
    """The most that the router had."""

    @property
    def figures(self) -> tuple[float, ...]:
        served, refused = self.ends["served"], self.ends["refused"]
        return (
            served,
            refused,
            self.ends.total() - served - refused,
            self.seconds,
            1000 * quantile(self.alone_s, 0.5),
            len(self.beside_s),
            1000 * quantile(self.beside_s, 0.5),
            max(self.beside_s),
            self.memory_mb,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--requests", type=count, default=REQUESTS, metavar="N", help=f"requests at once ({REQUESTS})")
    add("--connections", type=count, default=CONNECTIONS, metavar="N", help=f"over N ({CONNECTIONS})")


def run(args: argparse.Namespace) -> int:
    bursts = [
        asyncio.run(measure(args.model, args.requests, args.connections, seed))
        for seed in tracked(args.seeds, "seeds")
    ]
    columns = (
        "served", "refused for load", "other ends", "all ended after, s", "neighbour alone P50, ms",
        "its requests meanwhile", "their P50, ms", "their maximum, s", "router's memory, MB",
    )  # fmt: skip
    row = cells([burst.figures for burst in bursts], SPECS)
    others = Counter[str]()
    for burst in bursts:
        others += burst.ends
    method = (
        f"{args.requests} requests of 2 tokens at once over {args.connections} connections; timed workers of "
        f"{PROFILE}. All ends, over all seeds: {', '.join(f'{name} {num}' for name, num in others.items())}."
    )
    table = markdown(("", *columns), [("", *row)])
    details = {"found": [burst.figures for burst in bursts], "ends": dict(others)}
    return report(args, [Section("Many requests at once", method, (), (table,), details)])


async def measure(model: Path, num_requests: int, num_connections: int, seed: int) -> Burst:
    """Start a fleet, and send the requests beside a neighbour."""
    spawn = multiprocessing.get_context("spawn")  # forking gRPC's threads is unsafe
    async with Fleet(FleetSpec(model=model, prefill=0, timed=PROFILE, placement="aggregated")) as fleet:
        [address], router = fleet.router_addresses, fleet.process("router-0").pid
        neighbour, rng = GrpcTransport(address), random.Random(seed)
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            await asyncio.wrap_future(pool.submit(_nothing))  # the process has started
            alone_s = [await _timed(neighbour, rng) for _ in range(ALONE)]
            sending = asyncio.wrap_future(pool.submit(_burst, address, num_requests, num_connections, seed))
            watching = asyncio.create_task(_most_memory(router, sending))
            beside_s: list[float] = []
            while not sending.done():
                beside_s.append(await _timed(neighbour, rng))
            ends, seconds = await sending
        await neighbour.close()
        return Burst(ends, seconds, alone_s, beside_s, await watching)


def _nothing() -> None:
    pass


async def _timed(transport: GrpcTransport, rng: random.Random) -> float:
    began_s = time.perf_counter()
    await _ask(transport, rng)
    return time.perf_counter() - began_s


async def _ask(transport: GrpcTransport, rng: random.Random) -> None:
    await by_grpc(transport, [rng.randrange(*TOKEN_IDS) for _ in range(PROMPT_TOKENS)], 2)


async def _most_memory(pid: int, sending: asyncio.Future[Any]) -> float:
    most = 0.0
    while not sending.done():
        most = max(most, memory_and_cpu(pid)[0])
        await asyncio.sleep(LOOK_S)
    return most / 1e6


def _burst(address: str, num_requests: int, num_connections: int, seed: int) -> tuple[Counter[str], float]:
    return uvloop.run(_all(address, num_requests, num_connections, seed))


async def _all(
    address: str, num_requests: int, num_connections: int, seed: int
) -> tuple[Counter[str], float]:
    transports = [GrpcTransport(address) for _ in range(num_connections)]
    began_s = time.perf_counter()
    ends = await asyncio.gather(
        *(
            _end(transports[number % num_connections], random.Random(f"{seed}/{number}"))
            for number in range(num_requests)
        )
    )
    seconds = time.perf_counter() - began_s
    await _closed(transports)
    return Counter(ends), seconds


async def _end(transport: GrpcTransport, rng: random.Random) -> str:
    try:
        await _ask(transport, rng)
    except Overloaded:
        return "refused"
    except BatonError as error:
        return type(error).__name__
    return "served"


async def _closed(transports: Sequence[GrpcTransport]) -> None:
    for transport in transports:
        await transport.close()
