"""Streams that run side by side while something happens to their fleet, and when their tokens came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from baton import AsyncClient, Finished, Sampling, Stop, Tokens

STRIKE_AT = 60
"""Tokens of every stream before it strikes."""

EXACT = ("--dtype", "float64")
"""Sameness is exact in 64 bits; in 32 a batch of another size changes a last bit now and then."""


@dataclass(slots=True)
class Stream:
    """When each event with tokens came, on the monotonic clock, and the tokens."""

    at_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    attempts: int = 0
    resumes: int = 0

    def gaps(self, begin_s: float, end_s: float) -> list[float]:
        """Between events, as far as they end within a time."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return [after - before for before, after in pairs if begin_s <= after and before <= end_s]


def prompts_of(num_streams: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Each another one."""
    return [[3 + (seed * 31 + one * 7 + i) % 900 for i in range(num_tokens)] for one in range(num_streams)]


async def play(
    client: AsyncClient,
    prompts: Sequence[list[int]],
    num_tokens: int,
    seed: int,
    strike: Callable[[], Awaitable[None]] | None = None,
) -> list[Stream]:
    """All to their ends, so many tokens each; `strike` comes once every stream has come far enough."""
    missing = len(prompts)

    async def one(prompt: list[int]) -> Stream:
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

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def num_changed(streams: Sequence[Stream], undisturbed: Sequence[Stream]) -> int:
    """Streams whose tokens are not those of the undisturbed run."""
    return sum(a.token_ids != b.token_ids for a, b in zip(streams, undisturbed, strict=True))
