"""Streams under fire: each is compared with what the same request gave when nothing happened."""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.errors import BatonError, StreamCorrupt
from baton.progress import Collector
from baton.types import Accepted, Choice, FinishReason
from tests.chaos.plan import Phase

ENOUGH_S = 60.0
"""A stream that has not ended by then hangs: no fault lasts longer than a few seconds."""
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
            prompt = tuple(rng.randint(3, 1500) for _ in range(rng.choice((9, 60, 250))))
        drawn = number % 2 == 0
        sampling = Sampling(
            temperature=0.9 if drawn else 0.0,
            seed=rng.randint(0, 2**40),
            n=rng.choice((1, 1, 1, 2)) if drawn else 1,
            logprobs=2 if number % 5 == 0 else None,
            repetition_penalty=1.2 if number % 4 == 0 else None,
        )
        strings = ("\n\n",) if number % 7 == 0 else ()
        found.append(Ask(prompt, sampling, Stop(max_tokens=rng.randint(24, 90), strings=strings)))
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
    started_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    outcome: Outcome | None = None
    why: str = ""
    choices: Sequence[Choice] = ()
    pause: asyncio.Event = field(default_factory=asyncio.Event)
    reached: dict[Phase, asyncio.Event] = field(
        default_factory=lambda: {one: asyncio.Event() for one in Phase}
    )

    def recovery_s(self, struck_at: float) -> float | None:
        """From a strike to the first token after it; None where none was to come."""
        return next((at - struck_at for at in self.token_times if at > struck_at), None)


async def run(client: AsyncClient, ask: Ask, expected: Sequence[Choice] | None, course: Course) -> None:
    """Ask, listen, compare. `expected` None: this is the undisturbed run."""
    course.started_at = time.monotonic()
    course.pause.set()
    try:
        async with asyncio.timeout(ENOUGH_S):
            await _listen(client, ask, course)
    except TimeoutError:
        course.outcome, course.why = Outcome.LOST, f"no end within {ENOUGH_S:g} s"
    except StreamCorrupt as error:
        course.outcome, course.why = Outcome.REPEATED, str(error)
    except BatonError as error:
        course.outcome, course.why = Outcome.LOST, f"{type(error).__name__}: {error}"
    if course.outcome is None:
        same = expected is None or _told(course.choices) == _told(expected)
        course.outcome = Outcome.SAME if same else Outcome.CHANGED
    for event in course.reached.values():
        event.set()  # whoever waits for a phase that did not come finds the stream over


async def _listen(client: AsyncClient, ask: Ask, course: Course) -> None:
    collector = Collector(ask.sampling.n or 1)
    received = 0
    stream = client.generate(ask.prompt, sampling=ask.sampling, stop=ask.stop)
    course.reached[Phase.TOKENISE].set()
    async for event in stream:
        collector.take(event)
        match event:
            case Accepted():
                course.reached[Phase.QUEUE].set()
                asyncio.get_running_loop().call_later(0.02, course.reached[Phase.PREFILL].set)
            case Tokens():
                course.token_times.append(time.monotonic())
                received += len(event.token_ids)
                course.reached[Phase.HANDOFF].set()
                if received >= 8:
                    course.reached[Phase.DECODE].set()
                    course.reached[Phase.RELAY].set()
                await course.pause.wait()
    completion = collector.completion(stream.resumes)
    course.choices = completion.choices
    if any(one.finish_reason is FinishReason.FAILED for one in completion.choices):
        course.outcome, course.why = Outcome.LOST, f"failed: {completion.finished.error}"


def _told(choices: Sequence[Choice]) -> list[tuple[object, ...]]:
    """What must be the same to the bit: log-probabilities may differ in their last one with the batch."""
    return [(one.token_ids, one.text, one.finish_reason, len(one.logprobs)) for one in choices]
