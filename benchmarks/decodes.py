"""Requests for an engine without a fleet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from engine.core.commands import Decode
from engine.core.report import StepReport
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules
from worker.engine.engine_thread import Loop

GREEDY = SamplingParams(temperature=0.0)
_handles = itertools.count(1)


def decode(
    prompt: tuple[int, ...], stop: StopRules, sampling: SamplingParams = GREEDY, *, is_salted: bool = False
) -> Decode:
    """Return a request with a new handle; `is_salted` keeps it from using the prefix cache."""
    handle = next(_handles)
    fence = Fence("benchmark", str(handle), 0, 0, 0, "", "")
    salt = str(handle).encode() if is_salted else b""
    return Decode(SequenceSpec(handle, fence, prompt, (), (0,), sampling, stop, cache_salt=salt))


def fixed_length(num_tokens: int) -> StopRules:
    """Return the rules of an output of this length."""
    return StopRules(max_tokens=num_tokens, ignore_eos=True)


def run_all(loop: Loop, arrivals: Iterator[Sequence[Decode]], watch: Callable[[StepReport], None]) -> None:
    """Run requests on this thread until all have ended; raise RuntimeError if one fails.

    `arrivals` are those that come between two steps. `watch` is called with each report.
    """
    unfinished: set[int] = set()
    is_last = False

    def drain(timeout_s: float) -> Sequence[Decode]:
        nonlocal is_last
        for coming in arrivals:
            if coming or timeout_s == 0:
                unfinished.update(command.spec.handle for command in coming)
                return coming
        is_last = True
        return []

    def emit(report: StepReport) -> None:
        if report.failures or report.step_error:
            raise RuntimeError(report.step_error or str(report.failures))
        watch(report)
        unfinished.difference_update(report.freed)

    loop.run(drain, emit, lambda: is_last and not unfinished)
