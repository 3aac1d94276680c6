"""Requests for an engine without a fleet."""

from __future__ import annotations

import itertools

from engine.core.commands import Decode
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules

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
