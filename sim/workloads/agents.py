"""Agents: programs of several calls, each of which goes on from the prompt and the output before.

A program has 3 to 12 calls. Its first prompt is a task; each later one adds the output before it and what a
tool said. Between two calls tools run for a while. All lengths and times are drawn from lognormals, and no
two programs begin alike. A program's deadline is its own work without load, stretched, plus the time that its
tools will take.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sim.workloads.shapes import RequestShape, arrivals
from sim.workloads.trace import TraceRequest, Turn

FEWEST_CALLS, MOST_CALLS = 3, 12
TASK, TOOL, OUTPUT = (2000, 0.6), (500, 0.8), (150, 0.7)
"""Tokens: median, and sigma of the lognormal."""
THINK_S = (1.5, 1.0)
STRETCHES = (2.0, 4.0, 8.0)
MOST_TOKENS = 2000
"""The longest tool's result, and the longest output."""
PIECE_TOKENS = 64
"""A prompt is shared with the next call in pieces of this length."""
MOST_PIECES = 4096


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a program: its whole prompt, the part of it that is new, and its output, in tokens."""

    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    think_s: float

    @property
    def shape(self) -> RequestShape:
        """The part that a worker computes if it has the rest of the prompt."""
        return RequestShape(self.new_tokens, self.output_tokens)


def programs(seed: int) -> Iterator[tuple[Call, ...]]:
    """Return programs without end; the same seed draws the same."""
    rng = random.Random(f"agents:{seed}")
    while True:
        calls: list[Call] = []
        prompt, new = 0, _tokens(rng, TASK)
        for number in range(rng.randint(FEWEST_CALLS, MOST_CALLS)):
            prompt += new
            think_s = rng.lognormvariate(math.log(THINK_S[0]), THINK_S[1]) if number else 0.0
            calls.append(Call(prompt, new, _tokens(rng, OUTPUT), think_s))
            new = calls[-1].output_tokens + _tokens(rng, TOOL)
        yield tuple(calls)


def _tokens(rng: random.Random, lengths: tuple[int, float]) -> int:
    median, sigma = lengths
    return max(1, min(MOST_TOKENS, round(rng.lognormvariate(math.log(median), sigma))))


def draw_agents(
    rate: float, duration_s: float, seed: int, alone_s: Callable[[Call], float]
) -> tuple[TraceRequest, ...]:
    """Draw programs that begin at this rate; the calls of each follow one another in the trace.

    `alone_s` is what a call takes without load.
    """
    requests: list[TraceRequest] = []
    rng = random.Random(f"agents, deadlines:{seed}")
    for number, (at_s, calls) in enumerate(
        zip(arrivals("poisson", rate, seed), programs(seed), strict=False)
    ):
        if at_s > duration_s:
            break
        work_s = rng.choice(STRETCHES) * sum(map(alone_s, calls))
        requests += _trace_of(
            number, at_s, calls, work_s + sum(call.think_s for call in calls), len(requests)
        )
    return tuple(requests)


def _trace_of(
    program: int, at_s: float, calls: Sequence[Call], deadline_s: float, place: int
) -> Iterator[TraceRequest]:
    for number, call in enumerate(calls):
        before = place + number - 1 if number else None
        num_pieces = min(MOST_PIECES, math.ceil(call.prompt_tokens / PIECE_TOKENS))
        yield TraceRequest(
            at_s,
            call.prompt_tokens,
            call.output_tokens,
            shared_blocks=tuple(range(program * MOST_PIECES, program * MOST_PIECES + num_pieces)),
            shared_block_tokens=PIECE_TOKENS,
            turn=Turn(program, deadline_s, before, call.think_s),
        )
