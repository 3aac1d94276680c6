"""Streams through the doors of a composed fleet, and what each received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import openai

from baton import AsyncClient, Sampling, Stop, Timeout

NUM_STREAMS, NUM_TOKENS = 8, 2000
"""So many tokens that streams usually still run when Docker has killed a container, on a busy machine too."""
ATTEMPTS = 5
PROMPT = "Several things can be said about a list: "


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a fleet is called: a router's address, and the URLs of gateways that serve the same requests."""

    grpc: str
    http: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """The tokens of each gRPC stream and the text of each HTTP stream.

    `num_resumed` counts what the SDK continued, and `num_sent_again` the HTTP requests that broke.
    """

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    num_resumed: int
    num_sent_again: int

    def is_same(self, other: Received) -> bool:
        return (self.tokens, self.texts) == (other.tokens, other.texts)


async def struck(
    doors: Doors,
    strike: Callable[[], None],
    mend: Callable[[], None],
    undisturbed: Received,
    has_hit: Callable[[Received], bool],
) -> Received:
    """Strike until it hits streams that are under way, and return what these received.

    On a busy machine all of them may have ended before Docker has killed a container. Whether it hits or not,
    all streams have to be as if undisturbed.
    """
    for _ in range(ATTEMPTS):
        received = await under(doors, strike)
        assert received.is_same(undisturbed), strike.__name__
        await asyncio.to_thread(mend)
        if has_hit(received):
            return received
    raise AssertionError(f"{strike.__name__}: each time the streams had ended before it")


async def under(doors: Doors, strike: Callable[[], None] | None) -> Received:
    """Return what all streams receive, when `strike` comes once all have begun."""
    begun = [asyncio.Event() for _ in range(2 * NUM_STREAMS)]
    async with AsyncExitStack() as opened:
        # Before the first stream begins, since opening these takes a while.
        gateways = [
            await opened.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
            for url in doors.http
        ]
        client = AsyncClient(doors.grpc, timeout=Timeout(connect_s=120.0), resume_grace_s=30.0)
        await opened.enter_async_context(client)
        streams = asyncio.gather(*(_grpc_stream(client, seed, begun[seed]) for seed in range(NUM_STREAMS)))
        texts = asyncio.gather(
            *(_http_stream(gateways, seed, begun[NUM_STREAMS + seed]) for seed in range(NUM_STREAMS))
        )
        await asyncio.gather(*(event.wait() for event in begun))
        if strike is not None:
            await asyncio.to_thread(strike)
        tokens, resumed = zip(*await streams, strict=True)
        said, sent_again = zip(*await texts, strict=True)
    return Received(tokens, said, sum(resumed), sum(sent_again))


async def _grpc_stream(client: AsyncClient, seed: int, begun: asyncio.Event) -> tuple[tuple[int, ...], int]:
    sampling = Sampling(temperature=1.0, seed=seed)
    stop = Stop(max_tokens=NUM_TOKENS, ignore_eos=True)
    tokens: list[int] = []
    stream = client.generate(PROMPT + str(seed), sampling=sampling, stop=stop)
    async for event in stream:
        tokens.extend(getattr(event, "token_ids", ()))
        if len(tokens) > 20:
            begun.set()
    return tuple(tokens), stream.resumes


async def _http_stream(
    gateways: Sequence[openai.AsyncOpenAI], seed: int, begun: asyncio.Event
) -> tuple[str, int]:
    """Return the text of a request, sent until a gateway completes it, and how often it was sent again."""
    for num_sent_again in range(600):
        try:
            text = await _one_http_stream(gateways[num_sent_again % len(gateways)], seed, begun)
        except (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError, _Cut):
            await asyncio.sleep(0.2)  # a gateway that starts refuses connections for a while
        else:
            return text, num_sent_again
    raise AssertionError("no gateway completes the request")


async def _one_http_stream(client: openai.AsyncOpenAI, seed: int, begun: asyncio.Event) -> str:
    texts: list[str] = []
    async for chunk in await client.completions.create(
        model="demo_model", prompt=PROMPT + str(seed), max_tokens=NUM_TOKENS, temperature=1.0, seed=seed,
        stream=True, extra_body={"ignore_eos": True},
    ):  # fmt: skip
        texts.extend(choice.text for choice in chunk.choices)
        if len(texts) > 20:
            begun.set()
        if any(choice.finish_reason for choice in chunk.choices):
            return "".join(texts)
    raise _Cut


class _Cut(Exception):
    """A stream that ended before its generation did."""
