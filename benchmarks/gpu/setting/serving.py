"""Serves requests by an engine in this process: all given at once, and when each token came."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.build import BuiltEngine
from engine.core.commands import Command, Decode
from engine.core.report import StepReport
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules

_handles = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Request:
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Served:
    """Times in seconds from when the requests were given."""

    token_times: dict[int, list[float]] = field(default_factory=dict)
    """By request, in the order given."""

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
    """Greedy, end-of-sequence ignored, prompts at random; raises RuntimeError if one fails.

    `watch` is called with each report, on the step loop's thread, which is the caller's.
    """
    rng = random.Random(seed)
    vocab = engine.runner.model.facts.vocab_size
    specs = [_spec(next(_handles), rng, vocab, request) for request in requests]
    places = {spec.handle: place for place, spec in enumerate(specs)}
    served = Served({place: [] for place in places.values()})
    left = {spec.handle for spec in specs}
    inbox: list[list[Command]] = [[Decode(spec) for spec in specs]]
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


def _spec(handle: int, rng: random.Random, vocab: int, request: Request) -> SequenceSpec:
    return SequenceSpec(
        handle=handle,
        fence=Fence("benchmark", str(handle), 0, 0, 0, "", ""),
        prompt_token_ids=tuple(rng.choices(range(vocab), k=request.prompt_tokens)),
        output_token_ids=(),
        choices=(0,),
        sampling=SamplingParams(temperature=0.0),
        stop=StopRules(max_tokens=request.output_tokens, ignore_eos=True),
        cache_salt=str(
            handle
        ).encode(),  # equal seeds give equal prompts, which must be computed all the same
    )
