"""Streams under fire: each is compared with what the same request gave when nothing happened."""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.errors import BatonError, QueueFull, StreamCorrupt
from baton.progress import completion_of
from baton.types import Choice, Event, FinishReason

ENOUGH_S = 120.0
"""A stream that has not ended by then hangs: no fault lasts longer than a few seconds."""
MAX_TOKENS = (8, 40)
SLOW_EVERY = 8
"""One in so many clients reads late, so that its router has tokens to merge."""
LATE_S = 0.05
REFUSED_S = 0.5
TEXTS = ("import asyncio\n", "The list is", "def add(a, b):\n    return", "class Fleet:\n    ")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, the same each time it is asked."""

    prompt: str | tuple[int, ...]
    sampling: Sampling
    stop: Stop


def asks(rng: random.Random, count: int) -> list[Ask]:
    """Requests of every kind: long and short, greedy and drawn, several choices, penalties, stop strings."""
    found = []
    for number in range(count):
        prompt: str | tuple[int, ...]
        if number % 3 == 0:
            prompt = rng.choice(TEXTS) * rng.randint(1, 20)
        else:
            prompt = tuple(rng.randint(3, 1500) for _ in range(rng.choice((9, 60, 150, 250))))
        drawn = number % 2 == 0
        sampling = Sampling(
            temperature=0.9 if drawn else 0.0,
            seed=rng.randint(0, 2**40),
            n=rng.choice((1, 1, 1, 2)) if drawn else 1,
            logprobs=2 if number % 5 == 0 else None,
            repetition_penalty=1.2 if number % 4 == 0 else None,
        )
        strings = ("\n\n",) if number % 7 == 0 else ()
        found.append(Ask(prompt, sampling, Stop(max_tokens=rng.randint(*MAX_TOKENS), strings=strings)))
    return found


class Outcome(enum.StrEnum):
    SAME = "same"
    LOST = "lost"
    """It failed, hung, or was refused for good."""
    REPEATED = "repeated"
    CHANGED = "changed"


@dataclass
class Course:
    """One stream while it runs, and what came of it."""

    ask: Ask
    request_id: str = ""
    slow: bool = False
    refusals: int = 0
    token_times: list[float] = field(default_factory=list)
    outcome: Outcome | None = None
    why: str = ""
    choices: Sequence[Choice] = ()
    by_http: bool = False
    is_seeded: bool = True
    """False: the seed follows from the request's id."""
    is_again: bool = False
    """Its id was used before, and gave what it is compared with."""
    lost_gateways: int = 0

    def judge(self, expected: Sequence[Choice]) -> None:
        """Compare what came with what is due, unless it has failed."""
        told, due = _told(self.choices), _told(expected)
        if self.outcome is None:
            self.outcome = Outcome.SAME if told == due else Outcome.CHANGED
        if self.outcome is Outcome.CHANGED:
            self.why = self.why or f"{told} instead of {due}"

    def recovery_s(self, struck_at: float) -> float | None:
        """From a strike to the first token after it; None where none was to come."""
        return next((at - struck_at for at in self.token_times if at > struck_at), None)


async def run(client: AsyncClient, expected: Sequence[Choice] | None, course: Course) -> None:
    """Ask, listen, compare. `expected` None: this is the undisturbed run."""
    try:
        async with asyncio.timeout(ENOUGH_S):
            await _ask(client, course)
    except TimeoutError:
        course.outcome, course.why = Outcome.LOST, f"no end within {ENOUGH_S:g} s"
    except StreamCorrupt as error:
        course.outcome, course.why = Outcome.REPEATED, str(error)
    except BatonError as error:
        course.outcome, course.why = Outcome.LOST, f"{type(error).__name__}: {error}"
    course.judge(expected or course.choices)


async def _ask(client: AsyncClient, course: Course) -> None:
    """Again where routers that do not keep up take no newcomers: an answer, while there are no tokens."""
    while True:
        try:
            await _listen(client, course)
        except QueueFull:
            if course.token_times:
                raise
            course.refusals += 1
            await asyncio.sleep(REFUSED_S)
        else:
            return


async def _listen(client: AsyncClient, course: Course) -> None:
    ask = course.ask
    events: list[Event] = []
    stream = client.generate(ask.prompt, sampling=ask.sampling, stop=ask.stop, request_id=course.request_id)
    async for event in stream:
        events.append(event)
        if isinstance(event, Tokens):
            course.token_times.append(time.monotonic())
        if course.slow:
            await asyncio.sleep(LATE_S)
    completion = completion_of(events, ask.sampling.n or 1, stream.resumes)
    course.choices = completion.choices
    if any(choice.finish_reason is FinishReason.FAILED for choice in completion.choices):
        course.outcome, course.why = Outcome.LOST, f"failed: {completion.finished.error}"


def _told(choices: Sequence[Choice]) -> list[tuple[object, ...]]:
    """Return what must be equal to the bit: log-probabilities may differ in their last one with the batch."""
    return [(choice.token_ids, choice.text, choice.finish_reason, len(choice.logprobs)) for choice in choices]
