"""How many refusals were false: would admitting the request have raised the number of good ones?

A sampled refusal is replayed: the same requests from the start, but this one rather late than refused. It
was false when it then is good itself, and when of those around it no fewer are good than before, itself
aside. One more request shifts every step after it, so that neighbours near their limits may turn either way
by chance; `gain`, the mean change of the count, is therefore told as well: in it such chances cancel. Whoever
is refused even at risk could not have been good by any prediction, and counts as rightly refused.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sim.result import End, RequestResult, SimResult
from sim.simulation import run
from sim.spec import SimSpec

BEFORE_S = 10.0
AFTER_S = 20.0
"""Whom one more request can harm: those that still run when it comes, and those that come while it runs."""


@dataclass(frozen=True, slots=True)
class FalseRefusals:
    """Of `sampled` refusals."""

    sampled: int
    share: float
    """That were false."""
    gain: float
    """Good requests more, for each that would have been admitted."""


def false_refusals(spec: SimSpec, result: SimResult, samples: int) -> FalseRefusals | None:
    """Replay some refusals of a run; None where there was none."""
    refused = [place for place, one in enumerate(result.requests) if one.end is End.REFUSED]
    if not refused:
        return None
    chosen = random.Random(spec.seed).sample(refused, min(samples, len(refused)))
    gains = [_gain(spec, result, place) for place in chosen]
    false = sum(gain > 0 and own for gain, own in gains)
    return FalseRefusals(len(chosen), false / len(chosen), sum(gain for gain, _ in gains) / len(chosen))


def _gain(spec: SimSpec, result: SimResult, place: int) -> tuple[int, bool]:
    """By how much the count of good requests rises, and whether the admitted one is good."""
    at_s = spec.trace[place].at_s
    end = next((i for i, one in enumerate(spec.trace) if one.at_s > at_s + AFTER_S), len(spec.trace))
    played = replace(spec, trace=spec.trace[:end], at_risk=frozenset({place}))
    admitted = run(played).requests
    begin = next(i for i, one in enumerate(spec.trace) if one.at_s >= at_s - BEFORE_S)
    return _good(admitted[begin:]) - _good(result.requests[begin:end]), admitted[place].good


def _good(requests: Sequence[RequestResult]) -> int:
    return sum(one.good for one in requests)
