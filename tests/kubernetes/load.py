"""Streams without a pause over gRPC and HTTP, each compared with the same request undisturbed."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from baton import AsyncClient, Credentials, Sampling, Stop
from baton.security.secret_files import Certificates
from tests.patience import PATIENCE_S

PROMPT = "Several things can be said about a list: "
NUM_TOKENS = 240
STREAMS_A_DOOR = 4
SEEDS = range(STREAMS_A_DOOR)
"""A door has a stream of each seed at all times."""
BEGUN_AFTER = 20
"""Pieces that a stream has brought when it counts as begun."""


Piece: TypeAlias = tuple[int, ...] | str
"""Token ids over gRPC, text over HTTP."""
Streams: TypeAlias = Mapping[str, Callable[[int], AsyncIterator[Piece]]]
"""For each door a function that streams the pieces of a seed's request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One of the requests that the load repeats: by which door it goes, and its seed."""

    door: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content that one stream brought, its error, and the longest wait for a piece."""

    request: Request
    content: Piece
    error: str = ""
    longest_gap_s: float = 0.0


Expected: TypeAlias = Mapping[Request, Piece]


@dataclass
class Load:
    """The streams that have ended while the load lasted."""

    outcomes: list[Outcome] = field(default_factory=list)

    def check(self, expected: Expected) -> None:
        """Raise `AssertionError` naming each stream that failed or brought anything else than undisturbed."""
        wrong = [outcome for outcome in self.outcomes if outcome.content != expected[outcome.request]]
        assert self.outcomes
        assert not wrong, "\n".join(_described(outcome, expected) for outcome in wrong)

    def __str__(self) -> str:
        gap_s = max(outcome.longest_gap_s for outcome in self.outcomes)
        return f"{len(self.outcomes)} streams, longest gap {gap_s:.2f} s"


def _described(outcome: Outcome, expected: Expected) -> str:
    content, undisturbed = outcome.content, expected[outcome.request]
    same = next(
        (n for n, (a, b) in enumerate(zip(content, undisturbed, strict=False)) if a != b), len(content)
    )
    return (
        f"{outcome.request.door} {outcome.request.seed}: {len(content)} pieces of {len(undisturbed)}, "
        f"the first {same} of them right; {outcome.error or 'no error'}"
    )


class Doors:
    """The two doors of a fleet, at ports of this machine; a fleet with certificates demands a client's."""

    def __init__(
        self, grpc_port: int, http_port: int, model: str, certificates: Certificates | None = None
    ) -> None:
        self._router, self._model = f"127.0.0.1:{grpc_port}", model
        self._credentials, self._ssl, scheme = Credentials(), ssl.create_default_context(), "http"
        if certificates is not None:
            own = certificates.cert("client"), certificates.key("client")
            self._credentials = Credentials(certificates.ca, *own)
            self._ssl, scheme = ssl.create_default_context(cafile=certificates.ca), "https"
        self._gateway = f"{scheme}://127.0.0.1:{http_port}/v1"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Yield streams over connections of their own."""
        async with (
            AsyncExitStack() as clients,
            AsyncOpenAI(
                base_url=self._gateway,
                api_key="none",
                max_retries=0,
                http_client=DefaultAsyncHttpxClient(verify=self._ssl),
            ) as http,
        ):
            # Two equal addresses are two connections: a stream whose router leaves has another one. A client
            # for each seed, so that the Service spreads the streams over the routers.
            routers = [self._router, self._router]
            grpc = [
                await clients.enter_async_context(
                    AsyncClient(routers, resume_grace_s=30.0, credentials=self._credentials)
                )
                for _ in SEEDS
            ]
            yield {
                "grpc": lambda seed: self._grpc(grpc[seed], seed),
                "http": lambda seed: self._http(http, seed),
            }

    async def _grpc(self, client: AsyncClient, seed: int) -> AsyncIterator[tuple[int, ...]]:
        sampling = Sampling(temperature=1.0, seed=seed)
        stop = Stop(max_tokens=NUM_TOKENS, ignore_eos=True)
        async for event in client.generate(f"{PROMPT}{seed}", sampling=sampling, stop=stop):
            yield tuple(getattr(event, "token_ids", ()))

    async def _http(self, client: AsyncOpenAI, seed: int) -> AsyncIterator[str]:
        async for chunk in await client.completions.create(
            model=self._model, prompt=f"{PROMPT}{seed}", max_tokens=NUM_TOKENS, temperature=1.0, seed=seed,
            stream=True, extra_body={"ignore_eos": True},
        ):  # fmt: skip
            yield "".join(choice.text for choice in chunk.choices)


@asynccontextmanager
async def load(doors: Doors) -> AsyncIterator[Load]:
    """Keep a stream of each request running inside; afterwards, wait until the last ones have ended."""
    running, stopping = Load(), asyncio.Event()
    begun = {Request(door, seed): asyncio.Event() for door in ("grpc", "http") for seed in SEEDS}

    async def repeat(request: Request, stream: Callable[[int], AsyncIterator[Piece]]) -> None:
        while not stopping.is_set():
            running.outcomes.append(await _one(request, stream, begun[request]))

    async with doors.open() as streams, asyncio.TaskGroup() as tasks:
        for request in begun:
            tasks.create_task(repeat(request, streams[request.door]))
        try:
            await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun.values())), PATIENCE_S)
            yield running
        finally:
            stopping.set()


async def _one(
    request: Request,
    stream: Callable[[int], AsyncIterator[Piece]],
    begun: asyncio.Event,
) -> Outcome:
    pieces: list[Piece] = []
    began_s = last_s = time.monotonic()
    longest_s, error = 0.0, ""
    try:
        async for piece in stream(request.seed):
            now_s = time.monotonic()
            last_s, longest_s = now_s, max(longest_s, now_s - last_s)
            pieces.append(piece)
            if len(pieces) > BEGUN_AFTER:
                begun.set()
    except Exception as failure:  # noqa: BLE001  # whatever a client raises is what its user would see
        lasted_s = time.monotonic() - began_s
        error = f"after {lasted_s:.1f} s {type(failure).__name__}: {failure} ({failure.__cause__!r})"
        await asyncio.sleep(0.1)
    return Outcome(request, _joined(request.door, pieces), error, longest_s)


def _joined(door: str, pieces: Sequence[Piece]) -> Piece:
    if door == "http":
        return "".join(piece for piece in pieces if isinstance(piece, str))
    return tuple(token for piece in pieces if isinstance(piece, tuple) for token in piece)


async def undisturbed(doors: Doors) -> Expected:
    """Return what each request brings in a fleet that nothing happens to."""
    async with load(doors) as running:
        pass
    errors = [outcome.error for outcome in running.outcomes if outcome.error]
    assert not errors, errors
    return {outcome.request: outcome.content for outcome in running.outcomes}


async def under(doors: Doors, strike: Callable[[], Awaitable[None]]) -> Load:
    """Return the streams that ran while something happened."""
    async with load(doors) as running:
        await strike()
    return running
