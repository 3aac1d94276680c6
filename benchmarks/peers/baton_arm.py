"""Baton over gRPC, alone and with many generations on a call, and over HTTP: one fleet of timed workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton import Sampling, Slo, SloClass, Stop
from baton.fleet import Fleet, FleetSpec
from baton.wire.convert import request_to_pb
from baton.wire.many import MultiplexedTransport
from baton.wire.transport import GENERATE, WATCH, GrpcTransport
from benchmarks.doors.arms import Arm
from benchmarks.doors.observe import child_processes
from benchmarks.doors.plain import BadStream, PlainCaller

PROFILE = "h200-llama-3.1-8b"


@asynccontextmanager
async def baton(model: Path) -> AsyncIterator[list[Arm]]:
    """Run a fleet, and return the ways to ask it: the router alone, and through the gateway."""
    async with Fleet(FleetSpec(model=model, timed=PROFILE, gateways=1)) as fleet:
        router = {"router": fleet.process("router-0").pid}
        gateway = {"gateway": fleet.process("gateway-0").pid}
        alone = GrpcTransport(fleet.router_addresses[0])
        many = MultiplexedTransport(fleet.router_addresses[0])
        try:
            yield [
                Arm("Baton, gRPC", router, partial(by_grpc, alone)),
                Arm("Baton, GenerateMany", router, partial(by_grpc, many)),
                Arm(
                    "Baton, HTTP",
                    gateway | router,
                    partial(by_http, str(urlsplit(fleet.gateway_urls[0]).netloc), {}),
                ),
            ]
        finally:
            await alone.close()
            await many.close()


@asynccontextmanager
async def two_processes(model: Path) -> AsyncIterator[list[Arm]]:
    """Run a fleet whose router is two processes, and return the ways to ask it, half of the streams each."""
    async with (
        Fleet(FleetSpec(model=model, timed=PROFILE, router_processes=2)) as fleet,
        AsyncExitStack() as stack,
    ):
        children = child_processes(fleet.process("router-0").pid)
        pids = {f"process {index}": pid for index, pid in enumerate(children)}
        arms = []
        for name, kind in (("gRPC", GrpcTransport), ("GenerateMany", MultiplexedTransport)):
            transports: dict[str, GrpcTransport] = {}
            while len(transports) < len(pids):
                transport = kind(fleet.router_addresses[0])
                stack.push_async_callback(transport.close)
                async with aclosing(transport.stream(WATCH, WATCH.request())) as snapshots:
                    transports.setdefault((await anext(snapshots)).router_id, transport)
            turns = itertools.cycle(transports.values())
            arms.append(Arm(f"Baton, {name}, 2 processes", pids, partial(_in_turns, turns)))
        yield arms


async def _in_turns(transports: Iterator[GrpcTransport], prompt: str, num_tokens: int) -> float:
    return await by_grpc(next(transports), prompt, num_tokens)


async def by_http(address: str, added: Mapping[str, Any], prompt: str, num_tokens: int) -> float:
    """Stream a completion over a connection of its own; `added` is put into the body."""
    body = {**added, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    async with PlainCaller.connected(address) as caller:
        return await caller.play(body)


async def by_grpc(transport: GrpcTransport, prompt: str | list[int], num_tokens: int) -> float:
    """Stream a generation over the connection that all share, without what the SDK adds."""
    request = request_to_pb(
        prompt,
        Sampling(temperature=0),
        Stop(max_tokens=num_tokens, ignore_eos=True),
        Slo(slo_class=SloClass.STANDARD),
    )
    start_s, ttft_s, received = time.perf_counter(), 0.0, 0
    async for response in transport.stream(GENERATE, request):
        received += len(response.event.tokens.token_ids)
        if received and not ttft_s:
            ttft_s = time.perf_counter() - start_s
    if received != num_tokens:
        raise BadStream(f"the stream brought {received} tokens of {num_tokens}")
    return ttft_s
