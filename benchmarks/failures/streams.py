"""Run streams side by side while the fleet is disturbed, and record when their tokens came."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from baton import AsyncClient, Finished, Sampling, Stop, Tokens

STRIKE_AT = 60
"""Tokens that every stream has before the fleet is disturbed."""

EXACT = ("--dtype", "float64")
"""Outputs are identical in 64 bits; in 32, another batch size sometimes changes a last bit."""


@dataclass(slots=True)
class Stream:
    """When each event with tokens came, on the monotonic clock, and the tokens."""

    at_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    attempts: int = 0
    resumes: int = 0


@dataclass(frozen=True, slots=True)
class Wave:
    """The pauses of streams around one disturbance. Times in seconds."""

    before_s: list[float]
    """All gaps until the disturbance."""
    pauses_s: list[float]
    """The longest gap of each stream that went on elsewhere; empty if all had ended before."""
    changed: int
    """Streams whose tokens differ from those of the undisturbed run."""


def wave(
    streams: Sequence[Stream],
    undisturbed: Sequence[Stream],
    moved: Sequence[Stream],
    begin_s: float,
    end_s: float = math.inf,
) -> Wave:
    """Measure the pauses from the disturbance to its end; `moved` are the streams that went elsewhere."""
    return Wave(
        before_s=[gap for stream in streams for gap in gaps(stream.at_s, 0.0, begin_s)],
        pauses_s=[max(gaps(stream.at_s, begin_s, end_s)) for stream in moved],
        changed=sum(a.token_ids != b.token_ids for a, b in zip(streams, undisturbed, strict=True)),
    )


def gaps(at_s: Sequence[float], begin_s: float, end_s: float = math.inf) -> list[float]:
    """Return the gaps between the times of events that overlap a time."""
    pairs = itertools.pairwise(at_s)
    return [after - before for before, after in pairs if begin_s <= after and before <= end_s]


def joined(waves: Iterable[Wave]) -> Wave:
    """Return all of them as one."""
    found = list(waves)
    return Wave(
        [gap for wave_ in found for gap in wave_.before_s],
        [pause for wave_ in found for pause in wave_.pauses_s],
        sum(wave_.changed for wave_ in found),
    )


def prompts_of(num_streams: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Return prompts that all differ."""
    return [
        [3 + (seed * 31 + place * 7 + i) % 900 for i in range(num_tokens)] for place in range(num_streams)
    ]


async def play(
    client: AsyncClient,
    prompts: Sequence[list[int]],
    num_tokens: int,
    seed: int,
    strike: Callable[[], Awaitable[None]] | None = None,
) -> list[Stream]:
    """Run all streams to their ends; `strike` is called once every stream has `STRIKE_AT` tokens."""
    missing = len(prompts)

    async def stream_of(prompt: list[int]) -> Stream:
        nonlocal missing
        stream, is_ready = Stream(), False
        sampling = Sampling(temperature=1.0, seed=seed)
        events = client.generate(prompt, sampling=sampling, stop=Stop(max_tokens=num_tokens, ignore_eos=True))
        async for event in events:
            if isinstance(event, Finished):
                stream.attempts = event.usage.attempts
            if not isinstance(event, Tokens):
                continue
            stream.at_s.append(time.monotonic())
            stream.token_ids += event.token_ids
            if strike is not None and not is_ready and len(stream.token_ids) >= STRIKE_AT:
                is_ready = True
                missing -= 1
                if not missing:
                    await strike()
        stream.resumes = events.resumes
        return stream

    return await asyncio.gather(*(stream_of(prompt) for prompt in prompts))
