"""Serve requests with an engine in this process, all given at once, and record when each token came."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.decodes import decode, fixed_length
from engine.build import BuiltEngine
from engine.core.commands import Command
from engine.core.report import StepReport


@dataclass(frozen=True, slots=True)
class Request:
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Served:
    """Times in seconds since the requests were given."""

    token_times: dict[int, list[float]] = field(default_factory=dict)
    """Token times by request, in the order given."""

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.token_times.values())

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_times.values()))


def serve(
    engine: BuiltEngine,
    requests: Sequence[Request],
    seed: int,
    watch: Callable[[StepReport], None] = lambda _: None,
) -> Served:
    """Serve requests with random prompts, greedily, ignoring end-of-sequence; raise RuntimeError if one
    fails.

    `watch` is called with each report, on the step loop's thread, which is the caller's.
    """
    rng = random.Random(seed)
    vocab = engine.runner.model.facts.vocab_size
    decodes = [
        # Equal seeds give equal prompts, which must be computed all the same.
        decode(
            tuple(rng.choices(range(vocab), k=request.prompt_tokens)),
            fixed_length(request.output_tokens),
            is_salted=True,
        )
        for request in requests
    ]
    places = {command.spec.handle: place for place, command in enumerate(decodes)}
    served = Served({place: [] for place in places.values()})
    left = set(places)
    inbox: list[list[Command]] = [[*decodes]]
    began = time.perf_counter()

    def emit(report: StepReport) -> None:
        now = time.perf_counter() - began
        if report.failures or report.step_error:
            raise RuntimeError(report.step_error or str(report.failures))
        for handle in report.tokens.handles:
            served.token_times[places[handle]].append(now)
        watch(report)
        left.difference_update(report.freed)

    engine.loop.run(lambda _: inbox.pop() if inbox else [], emit, lambda: not left)
    return served
