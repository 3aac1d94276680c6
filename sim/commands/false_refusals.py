"""How many refusals were false: would admitting the request have raised the number of good ones?

A sampled refusal is replayed: the same requests from the start, but this one rather late than refused. It
was false when it then is good itself, and when of those around it no fewer are good than before, itself
aside. One more request shifts every step after it, so that neighbours near their limits turn either way by
chance. How often that alone looks like a gain is seen with a placebo: the same replay, but in place of the
refused one a request of one token that asks for nothing. It costs a step and changes nothing else; where more
of the others are good after it, chance would have called a right refusal false. So what is false beyond the
placebo's share is the router's, and the rest is chance. A request that could not be good by any prediction is
served behind the others, is mostly not good, and counts as rightly refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from router.errors import ValidationError
from scheduling.admission.admission import Cause
from sim.result import End, SimResult
from sim.simulation import run
from sim.spec import SimSpec
from workloads.trace import TraceRequest

BEFORE_S = 10.0
AFTER_S = 20.0
"""Whom one more request can harm: those that still run when it comes, and those that come while it runs."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Refusals sampled, of these the false ones, and of their placebos those that looked like a gain."""

    sampled: int
    false: int
    placebos: int


@dataclass(frozen=True, slots=True)
class FalseRefusals:
    """Of `sampled` refusals."""

    sampled: int
    share: float
    """That were false, or looked so by chance."""
    gain: float
    """Good requests more, for each that would have been admitted."""
    placebo_share: float = 0.0
    """Of placebos that looked like a gain."""
    placebo_gain: float = 0.0
    """Good requests more after a placebo: 0 but for chance."""
    by_cause: Mapping[str, Counts] = field(default_factory=dict)
    """By whose sake they were for."""

    @property
    def for_promises(self) -> Counts:
        """Of those that were not for fairness, which refuses who would have been good, and means to."""
        kept = [counts for cause, counts in self.by_cause.items() if cause != Cause.LENGTHS.value]
        return Counts(
            *(sum(getattr(request, name) for request in kept) for name in ("sampled", "false", "placebos"))
        )


def false_refusals(spec: SimSpec, result: SimResult, samples: int) -> FalseRefusals | None:
    """Replay some refusals of a run; None where there was none."""
    # What could never be met was turned away as wrong: no refusal, and none that could be false.
    refused = [
        place
        for place, request in enumerate(result.requests)
        if request.end is End.REFUSED and request.refused_for != ValidationError.__name__
    ]
    if not refused:
        return None
    chosen = random.Random(spec.seed).sample(refused, min(samples, len(refused)))
    seen = [(result.requests[place].refused_for, *_replays(spec, result, place)) for place in chosen]
    count = len(seen)
    return FalseRefusals(
        sampled=count,
        share=sum(is_false for _, _, is_false, _ in seen) / count,
        gain=sum(gain for _, gain, _, _ in seen) / count,
        placebo_share=sum(placebo > 0 for *_, placebo in seen) / count,
        placebo_gain=sum(placebo for *_, placebo in seen) / count,
        by_cause={
            cause: Counts(
                sum(known == cause for known, *_ in seen),
                sum(known == cause and is_false for known, _, is_false, _ in seen),
                sum(known == cause and placebo > 0 for known, *_, placebo in seen),
            )
            for cause in sorted({known for known, *_ in seen})
        },
    )


def _replays(spec: SimSpec, result: SimResult, place: int) -> tuple[int, bool, int]:
    """What admitting it gained, whether refusing it was false, and what a placebo gained."""
    gain, is_good = _admitted(spec, result, place)
    return gain, is_good and gain > 0, _placebo(spec, result, place)


def _admitted(spec: SimSpec, result: SimResult, place: int) -> tuple[int, bool]:
    """By how much the count of good requests rises, and whether the admitted one is good."""
    found, is_good = _replayed(replace(spec, at_risk=frozenset({place})), result, place)
    return found + is_good, is_good


def _placebo(spec: SimSpec, result: SimResult, place: int) -> int:
    """By how much the count of the others that are good rises."""
    nothing = TraceRequest(spec.trace[place].at_s, 1, 1)
    trace = (*spec.trace[:place], nothing, *spec.trace[place + 1 :])
    return _replayed(replace(spec, trace=trace), result, place)[0]


def _replayed(spec: SimSpec, result: SimResult, place: int) -> tuple[int, bool]:
    """How many more of those around a request are good than in the result, and whether it is good itself."""
    at_s = spec.trace[place].at_s
    begin = next(i for i, request in enumerate(spec.trace) if request.at_s >= at_s - BEFORE_S)
    end = next((i for i, request in enumerate(spec.trace) if request.at_s > at_s + AFTER_S), len(spec.trace))
    found = run(replace(spec, trace=spec.trace[:end])).requests
    around = [i for i in range(begin, end) if i != place]
    more = sum(found[i].good for i in around) - sum(result.requests[i].good for i in around)
    return more, found[place].good
