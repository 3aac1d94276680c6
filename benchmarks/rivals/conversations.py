"""Made conversations: each turn repeats all that was said before, so its prompt shares that prefix."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from sim.workload import Promises
from sim.workloads.shapes import arrivals
from sim.workloads.trace import TraceRequest

BLOCK_TOKENS = 512
MEAN_TURNS = 4.0
"""The number of turns is geometric."""
MOST_TURNS = 12
SYSTEM_TOKENS = (600, 0.8)
"""Tokens that the first turn has beside its question. All of these are median and sigma of a lognormal."""
QUESTION_TOKENS = (150, 1.0)
OUTPUT_TOKENS = (300, 0.6)
MOST_TOKENS = 4096
"""The longest question or output."""
THINK_S = (4.0, 1.0)
"""The time from an expected answer to the next question."""
TOKEN_S = 0.02
"""How long a token of an answer is expected to take."""
BLOCKS_APART = 1 << 16
"""Places of blocks of one conversation; more than its blocks."""


def conversations(
    rate_per_s: float, span_s: float, seed: int, promises: Promises
) -> tuple[TraceRequest, ...]:
    """Draw the turns of conversations that come within this span, at about this rate of turns.

    Conversations begin as a Poisson process, also in the time before, so that old and new ones are mixed from
    the start. Turns come at times that do not depend on how the fleet serves them.
    """
    rng = random.Random(f"conversations:{seed}")
    before_s = MEAN_TURNS * (_mean(THINK_S) + TOKEN_S * _mean(OUTPUT_TOKENS))
    requests: list[TraceRequest] = []
    for place, at_s in enumerate(arrivals("poisson", rate_per_s / MEAN_TURNS, seed)):
        if at_s > before_s + span_s:
            break
        turns = _turns(place, at_s - before_s, rng, promises)
        requests += [turn for turn in turns if 0 <= turn.at_s <= span_s]
    return tuple(sorted(requests, key=lambda request: request.at_s))


def _turns(place: int, at_s: float, rng: random.Random, promises: Promises) -> Iterator[TraceRequest]:
    context = _length(rng, SYSTEM_TOKENS)
    for _ in range(MOST_TURNS):
        prompt, output = context + _length(rng, QUESTION_TOKENS), _length(rng, OUTPUT_TOKENS)
        first = place * BLOCKS_APART
        yield TraceRequest(
            at_s,
            prompt,
            output,
            ttft_ms=promises.ttft_ms,
            tpot_ms=promises.tpot_ms,
            shared_blocks=tuple(range(first, first + math.ceil(prompt / BLOCK_TOKENS))),
            shared_block_tokens=BLOCK_TOKENS,
        )
        if rng.random() < 1 / MEAN_TURNS:
            return
        context = prompt + output
        at_s += TOKEN_S * output + rng.lognormvariate(math.log(THINK_S[0]), THINK_S[1])


def _length(rng: random.Random, shape: tuple[float, float]) -> int:
    median, sigma = shape
    return max(1, min(MOST_TOKENS, round(rng.lognormvariate(math.log(median), sigma))))


def _mean(shape: tuple[float, float]) -> float:
    median, sigma = shape
    return median * math.exp(sigma * sigma / 2)
