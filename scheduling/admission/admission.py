"""Decide on an SLO: accept what will very probably be kept, or say at once what could be.

A promise is made on the late side of what was observed. The limits are judged by these values, each of which
must be within the limit that the SLO states:

    limit   quantity                        quantile                                margin
    TTFT    time waited + predicted TTFT    q90 of observed / predicted, learnt     none
    TPOT    predicted TPOT                  q90 of observed / predicted, learnt     none
    ITL     longest unavoidable step        q95 of step times, in the cost model    ITL_MARGIN, 0.92

The learnt ratios apply to the predicted part alone: the time waited already is known. `at_most` caps them
where they would refuse what can be kept: both at 1 in an idle fleet, and that of the TPOT where workers
shorten their steps for a stated TPOT, so that predicted · ratio is at most the pace that these steps keep. A
trial is accepted if the floor, the quickest steps ever seen, keeps the SLO (`learnt.Trials`). A caller that
sets `allow_at_risk` is accepted at risk instead of refused, by two rules:

    decide         TTFT and TPOT at the q10 of the learnt ratios, ITL as above, are within the limits: the SLO
                   may still be kept, and the fleet aims at all of it
    rather_late    any other refusal, also for the sake of others: the answer will probably be late, and the
                   fleet aims only at what it can still keep (`aim_of`)

Under a policy without promises, all that would be refused is at risk (`unpromised`).

To promise everything that could be kept at the q10 would fill the queue with requests that all just miss. All
times are in seconds unless named otherwise.

`router/core/judge.py` calls `decide` with the numbers of its fleet, and `admit.py` beside it
carries the decision out.
"""

from __future__ import annotations

import enum
import hashlib
import math
from dataclasses import replace

from scheduling.admission.learnt import Spread
from scheduling.prediction import (
    Prediction,
    SloFloor,
)
from scheduling.request import Slo
from scheduling.value import value

MIN_RETRY_S = 0.1
"""Over HTTP the header `retry-after` has whole seconds, rounded up (`gateway/serving/errors.py`)."""
MAX_RETRY_S = 60.0
ITL_MARGIN = 0.92
"""The share of a promised gap that the predicted gap may fill. The prediction is the 95 % quantile, and one
step in twenty lasts longer. It covers the steps that no worker can avoid, of its decodes and one grain;
packing fills a step up to the whole gap, by the same quantile.
"""


class Verdict(enum.IntEnum):
    """Values as in the protocol."""

    ACCEPTED = 1
    AT_RISK = 2
    REFUSED = 3


class Cause(enum.Enum):
    """Why a request is refused."""

    OWN = "own promise"
    OTHERS = "promises and shares of others"
    """It would break a promise, or its tenant or class has had its share."""
    LENGTHS = "fairness to longer prompts"


@value
class Decision:
    """A verdict, and the values that the limits were compared with; the module's table has their quantiles.

    Those of a trial are the floor. The TTFT of a request that must yield to others includes that time; that
    of one refused for the sake of longer prompts is of a longer prompt.
    """

    verdict: Verdict
    ttft_s: float
    tpot_s: float
    itl_s: float = 0.0
    """Without `ITL_MARGIN`."""
    cause: Cause = Cause.OWN
    """Set if it is refused."""
    is_trial: bool = False
    """An idle fleet accepts it to find out whether the learnt costs still hold."""
    is_late: bool = False
    """At risk by the second rule (`rather_late`): it will probably miss a limit, or make others late."""

    @property
    def attainable_ttft_ms(self) -> int:
        """The tightest TTFT that would have been accepted."""
        return math.ceil(self.ttft_s * 1000)

    @property
    def attainable_tpot_ms(self) -> int:
        """The tightest TPOT that would have been accepted."""
        return max(1, math.ceil(self.tpot_s * 1000))

    @property
    def attainable_itl_ms(self) -> int:
        """The tightest gap between tokens that would have been accepted."""
        return max(1, math.ceil(self.itl_s * 1000 / ITL_MARGIN))


def decide(slo: Slo, predicted: Prediction, ttft: Spread, tpot: Spread, yield_s: float = 0.0) -> Decision:
    """Judge one request.

    `yield_s` is how long it must leave the capacity to others: by how much it would break a promise, or until
    its tenant and class are within their shares. Above 0 it is refused. A request without an SLO is never
    refused for latency.
    """
    late_ttft = predicted.waited_s + predicted.ttft_s * ttft.q90
    late_tpot, itl_s = predicted.tpot_s * tpot.q90, predicted.itl_s
    if not slo.is_stated:
        return Decision(Verdict.ACCEPTED, late_ttft, late_tpot, itl_s)
    if yield_s > 0:
        later = max(late_ttft, (slo.ttft_ms or 0) / 1000) + yield_s
        return Decision(Verdict.REFUSED, later, late_tpot, itl_s, Cause.OTHERS)
    early_ttft = predicted.waited_s + predicted.ttft_s * ttft.q10
    early_tpot = predicted.tpot_s * tpot.q10
    if meets(slo, late_ttft, late_tpot, itl_s):
        verdict = Verdict.ACCEPTED
    elif slo.allow_at_risk and meets(slo, early_ttft, early_tpot, itl_s):
        verdict = Verdict.AT_RISK
    else:
        verdict = Verdict.REFUSED
    return Decision(verdict, late_ttft, late_tpot, itl_s)


def rather_late(slo: Slo, decision: Decision) -> Decision:
    """Return the decision for a caller who may allow a late answer: at risk instead of refused.

    This is the second rule for "at risk": it needs no hope of keeping the SLO, unlike the first in `decide`.
    """
    if decision.verdict is not Verdict.REFUSED or not slo.allow_at_risk:
        return decision
    return replace(decision, verdict=Verdict.AT_RISK, is_late=True)


def aim_of(slo: Slo, decision: Decision) -> Slo:
    """Return the part of an SLO that the fleet aims at once it has accepted the request: normally all.

    A limit that the request will miss anyway is left out. Aiming at it would only make others late that can
    be in time: by its place in the queue, or by steps cut short for a pace that is not kept anyway.
    """
    if not decision.is_late:
        return slo
    first, pace = replace(slo, tpot_ms=None, itl_ms=None), replace(slo, ttft_ms=None)
    if not meets(first, decision.ttft_s, decision.tpot_s, decision.itl_s):
        slo = replace(slo, ttft_ms=None)
    if not meets(pace, decision.ttft_s, decision.tpot_s, decision.itl_s):
        slo = replace(slo, tpot_ms=None, itl_ms=None)
    return slo


def unpromised(decision: Decision) -> Decision:
    """Return the decision of a fleet that refuses nothing for latency: at risk instead of refused."""
    verdict = Verdict.AT_RISK if decision.verdict is Verdict.REFUSED else decision.verdict
    return replace(decision, verdict=verdict)


def meets(slo: Slo, ttft_s: float, tpot_s: float, itl_s: float) -> bool:
    """Return True if these latencies keep every limit that the SLO states."""
    in_ttft = slo.ttft_ms is None or ttft_s * 1000 <= slo.ttft_ms
    in_tpot = slo.tpot_ms is None or tpot_s * 1000 <= slo.tpot_ms
    in_itl = slo.itl_ms is None or itl_s * 1000 / ITL_MARGIN <= slo.itl_ms
    return in_ttft and in_tpot and in_itl


@value
class BelowFloor:
    """A field of an SLO, the value it has, and the least value that could be met."""

    field: str
    value_ms: int
    least_ms: int


def below_floor(slo: Slo, floor: SloFloor) -> BelowFloor | None:
    """Return the first field that asks for less than the floor."""
    for field, asked_ms, least_s in (
        ("slo.ttft_ms", slo.ttft_ms, floor.ttft_s),
        ("slo.tpot_ms", slo.tpot_ms, floor.step_s),
        ("slo.itl_ms", slo.itl_ms, floor.step_s),
    ):
        if asked_ms is not None and asked_ms < least_s * 1000:
            return BelowFloor(field, asked_ms, math.ceil(least_s * 1000))
    return None


def next_virtual_finish(
    virtual_finish: float, now: float, deficit_s: float, work_tokens: int, rate: float, load: float
) -> float:
    """Return when a request refused now could be served if all refused so far came back in turn.

    `deficit_s` is by how much its limit is missed now. Work drains only at the share of `rate` (tokens per
    second) that admitted requests leave. Successive refusals get successive times, so the clients do not come
    back as one wave.
    """
    return max(virtual_finish, now + deficit_s) + work_tokens / (rate * max(0.05, 1.0 - load))


def retry_after_s(virtual_finish: float, now: float, request_key: str) -> float:
    """Return the seconds to wait, within bounds, plus up to 20 % drawn from the hash of the request's key."""
    wait_s = min(MAX_RETRY_S, max(MIN_RETRY_S, virtual_finish - now))
    draw = int.from_bytes(hashlib.blake2b(request_key.encode(), digest_size=4).digest()) / 2**32
    return min(MAX_RETRY_S, wait_s * (1.0 + 0.2 * draw))
