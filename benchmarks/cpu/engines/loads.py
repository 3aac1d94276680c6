"""The loads that every engine is given, and what is measured of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CONTEXT = 290
"""Tokens of context in the middle of the steps that are timed, as far as prompts alone decide it."""
STEPS = 48
PREFILL_TOKENS = 2048
LARGEST_BATCH = 32


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that are sent at once. All outputs have the same length, whatever the tokens are.

    With `num_steps`, only steps count in which every sequence decodes: the first of them after the last
    sequence has its first token. Outputs then are as long as this takes.
    """

    name: str
    num_prompts: int
    prompt_tokens: int
    output_tokens: int = 0
    num_steps: int = 0

    @property
    def unit(self) -> str:
        return "ms per step" if self.num_steps else "tokens/s"

    @property
    def spec(self) -> str:
        """The format of its figures."""
        return ".1f" if self.num_steps else ".0f"

    @property
    def longest_output(self) -> int:
        """An output that lasts until all steps were timed, even if prompts are computed in turn."""
        return self.output_tokens or 2 * self.num_prompts + self.num_steps + 64

    def figure(self, played: Played) -> float:
        """Return milliseconds of a step, or tokens of the prompt or of outputs in a second."""
        if self.num_steps:
            return played.step_s * 1e3
        tokens = self.prompt_tokens if self.output_tokens == 1 else self.num_prompts * self.output_tokens
        return tokens / played.total_s

    def prompts(self, seed: int | str, vocab_size: int) -> list[list[int]]:
        """Return random prompts, which no other load and no other seed has."""
        rng = random.Random(f"{self.name}:{seed}")
        return [rng.choices(range(vocab_size), k=self.prompt_tokens) for _ in range(self.num_prompts)]


class Played(NamedTuple):
    """The record of an engine under a load."""

    total_s: float
    """From sending to the last token; 0 if steps were timed."""
    step_s: float
    """The mean of the timed steps; 0 if none were."""
    first_tokens: Sequence[int]
    """The first token of each output."""


def decodes(batch: int) -> Load:
    """Return the load of decode steps of this batch."""
    return Load(f"decode step, batch {batch}", batch, CONTEXT - STEPS // 2, num_steps=STEPS)


PREFILL = Load(f"prefill of 1 × {PREFILL_TOKENS}", 1, PREFILL_TOKENS, output_tokens=1)
ONE_DECODE = decodes(1)
LOADS = (
    PREFILL,
    ONE_DECODE,
    decodes(8),
    decodes(LARGEST_BATCH),
    Load(f"{LARGEST_BATCH} × (256 + 128) at once", LARGEST_BATCH, 256, output_tokens=128),
)
CHECKED = Load("first tokens", 32, 64, output_tokens=1)
"""Prompts whose outputs are compared with those of the same weights in float32, and not timed."""
WARM_UP = (
    Load("warm-up, a prompt", 1, 512, output_tokens=4),
    Load("warm-up, a batch", 8, 64, output_tokens=8),
)
KV_TOKENS = 512 * LARGEST_BATCH
"""Tokens of KV memory, of which no load needs all."""


def steps_of(arrivals: Sequence[Sequence[float]], num_steps: int) -> float | None:
    """Return the mean seconds of the steps after all sequences have begun; None if some are still to come.

    `arrivals` are the times of each sequence's tokens.
    """
    if not all(arrivals):
        return None
    all_begun = max(times[0] for times in arrivals)
    means = []
    for times in arrivals:
        counted = [at for at in times if at >= all_begun][: num_steps + 1]
        if len(counted) <= num_steps:
            return None
        means.append((counted[-1] - counted[0]) / num_steps)
    return sum(means) / len(means)
