"""The loads of a comparison, and what an arm does under each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from baton import BatonError
from benchmarks.fleets.doors.plain import BadStream
from benchmarks.fleets.observe import memory_and_cpu
from reporting.quantiles import quantile

WORDS = (
    *("import", "return", "value", "index", "result", "number", "string", "class", "method", "object"),
    *("path", "file", "name", "list", "table", "count", "first", "last", "open", "close", "read", "write"),
    *("send", "load", "store", "key", "user", "time", "date", "test", "case", "data", "text", "line", "word"),
)
"""Common words of Python code, each one or two tokens of the demo model."""


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` that begin at equal distances, `rate` of them in a second."""

    name: str
    requests: int
    rate: float
    prompt_words: int
    num_tokens: int
    is_streams: bool
    """Whether its cost counts by token, and not by request."""


STREAMS = tuple(
    Load(f"{number} × 400 tokens", number, float(number), 8, 400, True) for number in (1, 16, 64, 256)
)
RATES = tuple(
    Load(f"{rate} a second, {words} words", 300, float(rate), words, 2, False)
    for words in (35, 1000)
    for rate in (50, 100, 200)
)
"""The tokenizer of the demo model makes some 50 tokens of 35 words."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A running fleet: the processes between client and worker, and how a client asks it.

    `play(prompt, num_tokens)` returns the seconds to the first token. It raises `BadStream`, `BatonError` or
    `OSError` if the stream is not whole.
    """

    name: str
    pids: Mapping[str, int]
    play: Callable[[str, int], Awaitable[float]]


@dataclass(slots=True)
class Played:
    """The record of an arm under a load."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    """Processor time by process."""
    memory_mb: float = 0.0
    """Memory of all processes, at the end."""
    wall_s: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def tokens_per_s(self, load: Load) -> float:
        return len(self.ttft_ms) * load.num_tokens / self.wall_s

    def cost(self, load: Load) -> dict[str, float]:
        """Return µs of each process for a token, or ms for a request."""
        number = max(1, len(self.ttft_ms))
        unit = 1e6 / load.num_tokens if load.is_streams else 1e3
        return {process: used_s * unit / number for process, used_s in self.cpu_s.items()}

    def ttft_p50_ms(self) -> float:
        return quantile(self.ttft_ms, 0.5)


async def play(arm: Arm, load: Load, seed: int) -> Played:
    """Send the load, and return when all of it has ended."""
    played, rng = Played(), random.Random(seed)
    prompts = [" ".join(rng.choices(WORDS, k=load.prompt_words)) for _ in range(load.requests)]
    before = _cpu_s(arm)
    began = time.perf_counter()

    async def one(index: int) -> None:
        await asyncio.sleep(max(0.0, began + index / load.rate - time.perf_counter()))
        try:
            played.ttft_ms.append(1000 * await arm.play(prompts[index], load.num_tokens))
        except (BadStream, BatonError, OSError) as error:
            played.failed.append(f"{type(error).__name__}: {error}")

    await asyncio.gather(*(one(index) for index in range(load.requests)))
    played.wall_s = time.perf_counter() - began
    after = _cpu_s(arm)
    played.cpu_s = {process: after[process] - before[process] for process in after}
    played.memory_mb = sum(memory_and_cpu(pid)[0] for pid in arm.pids.values()) / 1e6
    return played


def _cpu_s(arm: Arm) -> dict[str, float]:
    return {process: memory_and_cpu(pid)[1] for process, pid in arm.pids.items()}
