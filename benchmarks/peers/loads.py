"""The loads of a comparison, and what they cost an arm."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.doors import arms
from benchmarks.doors.arms import Arm, Run

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

    def tokens_per_s(self, run: Run) -> float:
        return len(run.ttft_ms) * self.num_tokens / run.wall_s

    def cost(self, run: Run) -> dict[str, float]:
        """Return µs of each process for a token, or ms for a request."""
        number = max(1, len(run.ttft_ms))
        unit = 1e6 / self.num_tokens if self.is_streams else 1e3
        return {process: used_s * unit / number for process, used_s in run.cpu_s.items()}


STREAMS = tuple(
    Load(f"{number} × 400 tokens", number, float(number), 8, 400, True) for number in (1, 16, 64, 256)
)
RATES = tuple(
    Load(f"{rate} a second, {words} words", 300, float(rate), words, 2, False)
    for words in (35, 1000)
    for rate in (50, 100, 200)
)
"""The tokenizer of the demo model makes some 50 tokens of 35 words."""


async def play(arm: Arm, load: Load, seed: int) -> Run:
    """Send the load with prompts of random words, and return when all of it has ended."""
    rng = random.Random(seed)
    prompts = [" ".join(rng.choices(WORDS, k=load.prompt_words)) for _ in range(load.requests)]
    return await arms.play(arm, prompts, load.num_tokens, [n / load.rate for n in range(load.requests)])
