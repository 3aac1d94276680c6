"""Judges a request: accepted with a promise, accepted at risk, or refused.

check_slo       an SLO below the floor is an invalid argument, not a refusal
judge           a prediction, and how long the request must yield to others, give a decision
judge_newcomer  the same for a newcomer: an idle fleet may try it, a busy one keeps room for longer prompts
class_wait_s    until when its class has had more than its share
learn_length    a decision counts for the shares of prompt lengths
retry_after_s   when a refused request should come back: by then the decision can be another
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.core.admission.learnt import Learnt
from router.core.admission.predict import Forecast, Predictor
from router.core.admission.slo_floor import below_floor, check_slo, floor_of
from router.core.capacity.fleet import Fleet
from router.core.capacity.fleet_capacity import FleetCapacity
from router.core.queue.waiting import WaitingGroups
from scheduling.admission.admission import (
    Cause,
    Decision,
    Verdict,
    decide,
    meets,
    next_virtual_finish,
    retry_after_s,
    unpromised,
)
from scheduling.admission.backlog import Pace
from scheduling.admission.prediction import Prediction, QueueAhead, RequestCost
from scheduling.policies.policy import Policy
from scheduling.request import Slo
from scheduling.value import value


@value
class Judged:
    """A request to be judged: what it costs, what it asks for, and what is ahead of it."""

    cost: RequestCost
    slo: Slo
    due_at: float
    """The time by which the queue orders it."""
    ahead: QueueAhead
    hits: Mapping[str, int]
    """Leading blocks of its prompt that each worker holds, by worker key."""
    waits: bool = True
    """It is in the queue already."""


@value
class Judgement:
    """A decision with what it was made on."""

    decision: Decision
    predicted: Prediction
    at_rest: bool
    """The fleet is idle, and nobody waits."""

    @property
    def refused(self) -> bool:
        return self.decision.verdict is Verdict.REFUSED

    @property
    def may_be_tried(self) -> bool:
        """Return True if an idle fleet refuses the request for its own length, which it could try."""
        return self.at_rest and self.decision.cause is Cause.OWN


def _judgement(forecast: Forecast, slo: Slo, yield_s: float = 0.0) -> Judgement:
    """Decide on a forecast; a request with `yield_s` above 0 must leave the capacity to others."""
    decision = decide(slo, forecast.predicted, forecast.ttft, forecast.tpot, yield_s)
    return Judgement(decision, forecast.predicted, forecast.at_rest)


@dataclass(frozen=True, slots=True)
class Judge:
    """All that judgements are made from."""

    policy: Policy
    fleet: Fleet
    capacity: FleetCapacity
    learnt: Learnt
    waiting: WaitingGroups
    predictor: Predictor

    def check_slo(self, cost: RequestCost, slo: Slo, hits: Mapping[str, int]) -> None:
        """Raise ValidationError for an SLO that even an idle fleet could not meet.

        Baselines accept any SLO, and so does every fleet if the request sets `allow_at_risk`.
        """
        if slo.is_stated and self.policy.promises and not slo.allow_at_risk:
            check_slo(self.predictor.with_most_cached(cost, hits), slo, self.fleet)

    def judge(self, request: Judged, now: float, held_back_s: float = 0.0) -> Judgement:
        """Predict a request and decide on it.

        `held_back_s` is the time until its tenant and its class are within their shares. Here it is joined
        with the harm that the request would do to others: it yields for the longer of the two.
        """
        slo = request.slo
        forecast = self.predictor.predict(request.cost, slo, request.ahead, request.hits, now)
        if not self.policy.promises:
            judgement = _judgement(forecast, slo)
            return replace(judgement, decision=unpromised(judgement.decision))
        yield_s = max(held_back_s, self._harm_s(request, forecast, now))
        return _judgement(forecast, slo, yield_s)

    def judge_newcomer(self, request: Judged, now: float, held_back_s: float = 0.0) -> Judgement:
        """Judge a newcomer.

        A request that would be refused may be tried instead. A short one may have to leave room for longer
        prompts while those get less than their share.
        """
        judgement = self.judge(request, now, held_back_s)
        if not self.policy.promises:
            return judgement
        if judgement.refused:
            return self._tried(request, judgement, now)
        if request.slo.ttft_ms is None:
            return judgement
        return self._leaving_room(request, judgement, now)

    def class_wait_s(self, slo: Slo, now: float) -> float:
        """Return the seconds until a class may get more of the fleet; 0 if now, or if nothing is promised."""
        if not self.policy.promises:
            return 0.0
        rate = self.capacity.prefill_rate(slo.pace_ms, now)
        return self.learnt.by_class.wait_s(slo.slo_class, rate, now)

    def learn_length(self, request: Judged, judgement: Judgement, now: float) -> None:
        """Count a decision by the prompt's length.

        A refused request whose SLO would be missed even with no prompt ahead of it, beside the running
        decodes, does not count: leaving room for it would not help.
        """
        slo, predicted = request.slo, judgement.predicted
        if slo.ttft_ms is None or not self.policy.promises:
            return
        admitted = not judgement.refused
        if admitted or meets(slo, predicted.ttft_s - predicted.wait_s, predicted.tpot_s, predicted.itl_s):
            shares = self.learnt.by_length[slo.slo_class]
            shares.decided(request.cost.prompt_tokens, now, admitted=admitted)

    def retry_after_s(self, request: Judged, judgement: Judgement, request_key: str, now: float) -> float:
        """Return when a refused request should try again; successive refusals get successive times."""
        finish = self._served_at(request, judgement, now)
        if not judgement.may_be_tried:
            self.learnt.virtual_finish = finish
        return retry_after_s(finish, now, request_key)

    def quoted_retry_after_s(self, request: Judged, judgement: Judgement, now: float) -> float:
        """Return the same for a request that is not sent: it does not move the times of other refusals."""
        return retry_after_s(self._served_at(request, judgement, now), now, "")

    def _harm_s(self, request: Judged, forecast: Forecast, now: float) -> float:
        """Return by how much a request would make others late that wait behind it (`Backlog.harm_s`)."""
        slo, waits, own_tokens = request.slo, request.waits, request.cost.prompt_tokens
        if not slo.is_stated or len(self.waiting) <= waits:
            return 0.0
        backlog = self.waiting.backlog
        # Other routers' waiting tokens are known by the work ahead alone: scale ours up to it.
        ours = backlog.tokens_before(slo.slo_class, request.due_at) - (own_tokens if waits else 0)
        pace = Pace(
            now=now,
            start_tokens=self.fleet.bound_tokens,
            rate=forecast.capacity.prefill_rate,
            stretch=forecast.ttft.q90,
            scale=max(1.0, request.ahead.tokens / ours) if ours > 0 else 1.0,
        )
        return backlog.harm_s(slo.slo_class, request.due_at, own_tokens, pace, waits=waits)

    def _leaving_room(self, request: Judged, judgement: Judgement, now: float) -> Judgement:
        """Return the judgement; a request is refused if it must leave room for longer prompts."""
        cost, slo = request.cost, request.slo
        # Lower classes give way first: their admitted requests are no load to this one.
        admitted = self.learnt.by_class.admitted_until(slo.slo_class, now)
        load = admitted / self.capacity.prefill_rate(slo.pace_ms, now)
        longer_by = self.learnt.by_length[slo.slo_class].longer_by(cost.prompt_tokens, load, now)
        if longer_by == 0:
            return judgement
        longer = replace(cost, prompt_tokens=cost.prompt_tokens + longer_by)
        # The requests behind are no later for it: the added length is not computed.
        as_longer = _judgement(self.predictor.predict(longer, slo, request.ahead, request.hits, now), slo)
        if not as_longer.refused:
            return judgement
        return replace(judgement, decision=replace(as_longer.decision, cause=Cause.LENGTHS))

    def _tried(self, request: Judged, judgement: Judgement, now: float) -> Judgement:
        """Return the judgement; a request is accepted as a trial if the fleet is idle and may try it."""
        cost, slo = request.cost, request.slo
        if not judgement.may_be_tried or self.learnt.trials.wait_s(cost.prompt_tokens, slo, now) > 0:
            return judgement
        cost = self.predictor.with_most_cached(cost, request.hits)
        floor = floor_of(cost, self.fleet.computing, self.fleet.decoding)
        floor = replace(floor, ttft_s=cost.waited_s + floor.ttft_s)
        if below_floor(slo, floor) is not None:
            return judgement
        trial = Decision(Verdict.ACCEPTED, floor.ttft_s, floor.step_s, floor.step_s, is_trial=True)
        return replace(judgement, decision=trial)

    def _served_at(self, request: Judged, judgement: Judgement, now: float) -> float:
        """Return when a refused request could be served; in an idle fleet, when it may be tried."""
        slo, tokens = request.slo, request.cost.prompt_tokens
        if judgement.may_be_tried:
            return now + self.learnt.trials.wait_s(tokens, slo, now)
        capacity = self.capacity.capacity(slo.pace_ms, now)
        deficit_s = max(0.0, judgement.decision.ttft_s - (slo.ttft_ms or 0) / 1000)
        rate, load = capacity.prefill_rate, self.predictor.load(capacity, now)
        return next_virtual_finish(self.learnt.virtual_finish, now, deficit_s, tokens, rate, load)
