"""Streams over HTTP under fire. One whose gateway dies hears an error, and is asked again of another gateway.

It is asked with the same `Idempotency-Key`: what came before the error is how the second response begins.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from baton.types import Choice, FinishReason, TokenLogprobs
from benchmarks.doors.http import HttpError, OpenAIClient
from tests.chaos.arena import GATEWAYS, Arena
from tests.chaos.streams import ENOUGH_S, LATE_S, REFUSED_S, Ask, Course, Outcome

NOTICED_S = 30.0
"""A death that nobody ordered is heard of this late at most."""


@dataclass
class Heard:
    """The part of a choice that has come."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason = FinishReason.FAILED
    """Until its end is told."""

    def add(self, choice: dict[str, Any]) -> None:
        self.text += choice["text"]
        self.token_ids += choice.get("token_ids", ())
        if choice["logprobs"]:
            self.logprobs += [TokenLogprobs(value, ()) for value in choice["logprobs"]["token_logprobs"]]
        if choice["finish_reason"] == "length":
            self.reason = FinishReason.LENGTH
        elif choice["finish_reason"]:
            self.reason = FinishReason.EOS if choice["stop_reason"] is None else FinishReason.STOP

    def begins(self, whole: Choice) -> bool:
        """Return whether the whole choice begins like this."""
        tokens = tuple(self.token_ids)
        return whole.token_ids[: len(tokens)] == tokens and whole.text.startswith(self.text)


async def run_http(arena: Arena, expected: Sequence[Choice], course: Course) -> None:
    """Ask, listen, compare."""
    try:
        async with asyncio.timeout(ENOUGH_S):
            await _ask(arena, course)
    except TimeoutError:
        course.outcome, course.why = Outcome.LOST, f"no end within {ENOUGH_S:g} s"
    except HttpError as error:
        course.outcome, course.why = Outcome.LOST, f"HTTP {error.status} {error.code}: {error}"
    course.judge(expected if course.is_seeded or course.is_again else course.choices)


async def _ask(arena: Arena, course: Course) -> None:
    """Ask again after a refusal, or of another gateway after the death of one. Other errors are raised."""
    first = int(course.request_id[:2], 16)
    begun: list[list[Heard]] = []
    for name in itertools.islice(itertools.cycle(GATEWAYS), first % len(GATEWAYS), None):
        if name in arena.watch.down:
            await asyncio.sleep(0.01)
            continue
        deaths = arena.num_deaths[name]
        arena.watch.lives[course.request_id].gateway = name
        heard = [Heard() for _ in range(course.ask.sampling.n or 1)]
        try:
            await _listen(arena.http[name], course, heard)
        except HttpError as error:
            if error.code == "queue_full" and not course.token_times:
                course.refusals += 1
                await asyncio.sleep(REFUSED_S)
            elif error.status == 0 and await _has_died(arena, name, deaths):
                course.lost_gateways += 1
                begun.append(heard)
            else:
                raise
        else:
            break
    course.choices = [
        Choice(index, choice.text, tuple(choice.token_ids), choice.reason, tuple(choice.logprobs))
        for index, choice in enumerate(heard)
    ]
    for earlier in begun:
        for part, whole in zip(earlier, course.choices, strict=True):
            if not part.begins(whole):
                course.outcome, course.why = Outcome.CHANGED, f"{whole} after {part}"


async def _has_died(arena: Arena, name: str, deaths: int) -> bool:
    until = time.monotonic() + NOTICED_S
    while arena.num_deaths[name] == deaths and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return arena.num_deaths[name] != deaths


async def _listen(client: OpenAIClient, course: Course, heard: list[Heard]) -> None:
    headers = {"idempotency-key": course.request_id}
    async with aclosing(client.completion(_body(course.ask, is_seeded=course.is_seeded), headers)) as chunks:
        async for chunk in chunks:
            for choice in chunk["choices"]:
                heard[choice["index"]].add(choice)
                if choice.get("token_ids"):
                    course.token_times.append(time.monotonic())
            if course.slow:
                await asyncio.sleep(LATE_S)


def _body(ask: Ask, *, is_seeded: bool) -> dict[str, Any]:
    sampling = ask.sampling
    return {
        "prompt": ask.prompt,
        "temperature": sampling.temperature,
        "seed": sampling.seed if is_seeded else None,
        "n": sampling.n,
        "logprobs": sampling.logprobs,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": ask.stop.max_tokens,
        "stop": list(ask.stop.strings),
        "return_token_ids": True,
    }
