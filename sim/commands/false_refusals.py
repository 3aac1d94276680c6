"""Measure how many refusals were false: would admitting the request have raised the number of good ones?

A sampled refusal is replayed: the same requests from the start, but this one at risk instead of refused. It
was false if it then is good itself, and if no fewer of the requests around it are good, not counting itself.
One more request shifts every step after it, so neighbours near their limits may change either way by chance.
A placebo shows how often that alone looks like a gain: the same replay, but with a request of one token and
no SLO in place of the refused one. It costs a step and changes nothing else. If more of the others are good
after it, chance would have called a correct refusal false. So the share of false refusals beyond the
placebo's share is the router's, and the rest is chance. A request that could not be good by any prediction is
served behind the others, is mostly not good, and counts as correctly refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from router.errors import ValidationError
from scheduling.admission.admission import Cause
from sim.play.simulation import run
from sim.result import End, SimResult
from sim.spec import SimSpec
from sim.workloads.trace import TraceRequest

BEFORE_S = 10.0
AFTER_S = 20.0
"""The time around a request in which it can harm others: requests still running when it arrives, and those
that arrive while it runs."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sampled refusals, the false ones among them, and placebos that looked like a gain."""

    sampled: int
    false: int
    placebos: int


@dataclass(frozen=True, slots=True)
class FalseRefusals:
    """The result for `sampled` refusals."""

    sampled: int
    share: float
    """The share that was false, or looked so by chance."""
    gain: float
    """The mean gain of good requests by admitting the request."""
    placebo_share: float = 0.0
    """The share of placebos that looked like a gain."""
    placebo_gain: float = 0.0
    """The mean gain of good requests by a placebo: 0 except for chance."""
    by_cause: Mapping[str, Counts] = field(default_factory=dict)
    """Counts by the cause of the refusal."""

    @property
    def for_promises(self) -> Counts:
        """The counts without refusals for fairness, which refuse good requests on purpose."""
        kept = [counts for cause, counts in self.by_cause.items() if cause != Cause.LENGTHS.value]
        return Counts(
            *(sum(getattr(request, name) for request in kept) for name in ("sampled", "false", "placebos"))
        )


def false_refusals(spec: SimSpec, result: SimResult, samples: int) -> FalseRefusals | None:
    """Replay some refusals of a run; return None if there was none."""
    # An SLO that could never be met was an invalid argument, not a refusal that could be false.
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
    """Return the gain of admitting it, whether refusing it was false, and the gain of a placebo."""
    others, is_good = _replayed(replace(spec, at_risk=frozenset({place})), result, place)
    nothing = TraceRequest(spec.trace[place].at_s, 1, 1)
    trace = (*spec.trace[:place], nothing, *spec.trace[place + 1 :])
    placebo, _ = _replayed(replace(spec, trace=trace), result, place)
    gain = others + is_good
    return gain, is_good and gain > 0, placebo


def _replayed(spec: SimSpec, result: SimResult, place: int) -> tuple[int, bool]:
    """Return the gain of good requests around a request, and whether it is good itself."""
    at_s = spec.trace[place].at_s
    begin = next(i for i, request in enumerate(spec.trace) if request.at_s >= at_s - BEFORE_S)
    end = next((i for i, request in enumerate(spec.trace) if request.at_s > at_s + AFTER_S), len(spec.trace))
    found = run(replace(spec, trace=spec.trace[:end])).requests
    around = [i for i in range(begin, end) if i != place]
    more = sum(found[i].good for i in around) - sum(result.requests[i].good for i in around)
    return more, found[place].good
