"""The fleets that are struck, and what is struck in each."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from benchmarks.doors.http import HttpError, OpenAIClient
from benchmarks.doors.observe import busiest_decoder
from benchmarks.peers.baton_arm import PROFILE
from benchmarks.peers.dynamo_arm import NAME, running

KILLED, STOPPED = "killed", "stopped"
MIGRATIONS = ("--migration-limit", "3")

Stream = Callable[[int], AsyncGenerator[str, None]]
"""Yields the pieces of the output for a prompt, by its number; raises unless the output is whole."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A running fleet: a stream of it by the number of its prompt, and the strike."""

    stream: Stream
    strike: Callable[[], Awaitable[None]]
    is_deterministic: bool


@dataclass(frozen=True, slots=True)
class Strike:
    """A process of an arm, and what happens to it. `started(model, seed, num_tokens)` runs the fleet."""

    process: str
    how: str
    arm: str
    started: Callable[[Path, int, int], AbstractAsyncContextManager[Struck]]


@asynccontextmanager
async def _baton(
    door: str, process: str, how: str, model: Path, seed: int, num_tokens: int
) -> AsyncIterator[Struck]:
    """Run two routers and two workers, and a gateway before them for HTTP."""
    spec = FleetSpec(model=model, timed=PROFILE, routers=2, prefill=0, decode=2, gateways=int(door == "http"))
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        name = ""

        async def strike() -> None:
            nonlocal name
            name = await busiest_decoder(client) if process == "worker" else f"{process}-0"
            victim = fleet.process(name)
            (victim.kill if how == KILLED else victim.pause)()

        if door == "grpc":
            yield Struck(partial(_by_grpc, client, seed, num_tokens), strike, is_deterministic=True)
        else:
            async with OpenAIClient(fleet.gateway_urls[0]) as http:
                yield Struck(partial(_by_http, http, {}, seed, num_tokens), strike, is_deterministic=True)
        if how == STOPPED:
            fleet.process(name).resume()


@asynccontextmanager
async def _dynamo(process: str, how: str, model: Path, seed: int, num_tokens: int) -> AsyncIterator[Struck]:
    async with (
        running(model, 2, *MIGRATIONS) as deployment,
        OpenAIClient(f"http://{deployment.address}") as http,
    ):
        process_handle = deployment.workers[0] if process == "worker" else deployment.frontend

        async def strike() -> None:
            process_handle.send_signal(signal.SIGKILL if how == KILLED else signal.SIGSTOP)

        stream = partial(_by_http, http, {"model": NAME}, seed, num_tokens)
        yield Struck(stream, strike, is_deterministic=False)


async def _by_grpc(client: AsyncClient, seed: int, num_tokens: int, index: int) -> AsyncGenerator[str, None]:
    events = client.generate(
        prompt(seed, index),
        sampling=Sampling(temperature=1.0, seed=seed),
        stop=Stop(max_tokens=num_tokens, ignore_eos=True),
    )
    async for event in events:
        if isinstance(event, Tokens):
            yield "".join(f"{token_id} " for token_id in event.token_ids)


async def _by_http(
    http: OpenAIClient, added: dict[str, str], seed: int, num_tokens: int, index: int
) -> AsyncGenerator[str, None]:
    body = {
        **added,
        "prompt": prompt(seed, index),
        "max_tokens": num_tokens,
        "temperature": 1.0,
        "seed": seed,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    received = 0
    async for chunk in http.completion(body):
        for choice in chunk["choices"]:
            if choice["text"]:
                yield choice["text"]
        received = (chunk.get("usage") or {}).get("completion_tokens", 0)
    if received != num_tokens:
        raise HttpError(200, f"{received} tokens came instead of {num_tokens}")


def prompt(seed: int, index: int) -> str:
    """Return a prompt that no other stream has."""
    return f"import value {seed * 1000 + index}"


STRIKES = (
    *(
        Strike("worker", how, "Baton, gRPC", partial(_baton, "grpc", "worker", how))
        for how in (KILLED, STOPPED)
    ),
    *(
        Strike("worker", how, "Baton, HTTP", partial(_baton, "http", "worker", how))
        for how in (KILLED, STOPPED)
    ),
    *(Strike("worker", how, "Dynamo, HTTP", partial(_dynamo, "worker", how)) for how in (KILLED, STOPPED)),
    Strike("router", KILLED, "Baton, gRPC", partial(_baton, "grpc", "router", KILLED)),
    Strike("router", KILLED, "Baton, HTTP", partial(_baton, "http", "router", KILLED)),
    Strike("gateway", KILLED, "Baton, HTTP", partial(_baton, "http", "gateway", KILLED)),
    Strike("frontend", KILLED, "Dynamo, HTTP", partial(_dynamo, "frontend", KILLED)),
)
