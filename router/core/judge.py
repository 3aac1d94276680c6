"""Judges a request: what it will experience, and whether it is accepted with a promise, at risk, or refused.

goal            the SLO by which a call of a program is judged
check_slo       an SLO below the floor is an invalid argument, not a refusal
forecast        TTFT, TPOT and longest gap on this fleet, and how far such predictions are off
judge           a forecast, and how long the request must yield to others, give a decision
judge_newcomer  the same for a newcomer: an idle fleet may try it, a busy one keeps room for longer prompts
class_wait_s    until when its class has had more than its share
learn_length    a decision counts for the shares of prompt lengths
served_at       when a refused request could be served: by then the decision can be another

The formulas are in `scheduling/admission`; here they get the fleet, the prompt's blocks that workers have,
and what was learnt. A forecast counts the part of the prompt that need not be computed, but no more than is
sure to be there where the prompt ends up: the prefix directory knows what each worker has in memory and on
its disk, and with that what each could fetch from others, and several workers may come to take the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from router.core.model.fleet import Worker, cuts_steps
from router.core.model.state import RouterState
from router.errors import Reason, ValidationError
from router.request import Request
from scheduling.admission.admission import (
    Cause,
    Decision,
    Verdict,
    below_floor,
    decide,
    meets,
    next_virtual_finish,
    unpromised,
)
from scheduling.admission.backlog import Pace
from scheduling.admission.learnt import Spread
from scheduling.admission.prefixes import PrefixHits, least_held
from scheduling.admission.programs import goal_of
from scheduling.placement import Placement
from scheduling.prediction import (
    HeldPrefix,
    Lane,
    Prediction,
    QueueAhead,
    RequestCost,
    SloFloor,
    lone_step_s,
    predict,
    slo_floor,
    soonest,
)
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
    hits: PrefixHits
    """Leading blocks of its prompt that workers have."""
    waits: bool = True
    """It is in the queue already."""
    adapter: str = ""
    """The digest of its LoRA adapter; empty without one."""


@value
class Forecast:
    """A prediction, with how far such predictions are off."""

    predicted: Prediction
    ttft: Spread
    tpot: Spread
    at_rest: bool
    """The fleet is idle, and nobody waits."""


@value
class Judgement:
    """A decision with what it was made on."""

    decision: Decision
    predicted: Prediction
    may_be_tried: bool
    """An idle fleet refuses the request for its own length, which it could try."""

    @property
    def refused(self) -> bool:
        return self.decision.verdict is Verdict.REFUSED


# The floor


def check_slo(state: RouterState, cost: RequestCost, slo: Slo, hits: PrefixHits) -> None:
    """Raise ValidationError for an SLO that even an idle fleet could not meet.

    Baselines accept any SLO, and so does every fleet if the request sets `allow_at_risk`.
    """
    if not slo.is_stated or not state.config.policy.promises or slo.allow_at_risk:
        return
    # No read is waited for: what a disk has counts as if it were in memory.
    fleet = state.fleet
    if hits.has_any:
        cost = cost.with_cached(hits.most_held() * fleet.block_size)
    # If one worker can meet the SLO, so can the fleet: the first worker mostly settles it.
    found = below_floor(slo, _floor_of(cost, fleet.computing[:1], fleet.decoding[:1]))
    found = found and below_floor(slo, _floor_of(cost, fleet.computing, fleet.decoding))
    if found is not None:
        accepted = f"{found.least_ms} or more, or unset: no worker of this fleet is faster, even idle"
        raise ValidationError(
            found.field, found.value_ms, accepted, Reason.SLO_IMPOSSIBLE, limit=found.least_ms
        )


def _floor_of(cost: RequestCost, computing: Sequence[Worker], decoding: Sequence[Worker]) -> SloFloor:
    budgets = [(worker.quickest, worker.facts.token_budget) for worker in computing]
    return slo_floor(cost, budgets, [worker.quickest for worker in decoding])


# What a program implies


def goal(state: RouterState, request: Request) -> Slo:
    """Return the SLO by which a newcomer is judged and ordered: with what its program implies, if any."""
    program, slo = request.program, request.slo
    if program is None or not state.config.policy.promises:
        return slo
    step_s = 0.0
    if state.fleet.serves:
        view = state.capacity.capacity(slo.pace_ms, state.now).roomiest
        step_s = lone_step_s(view.cost, len(request.prompt_token_ids))
    return goal_of(slo, program, state.learnt.programs.rest(request.tenant, program.id), step_s)


# Forecasts


def forecast(state: RouterState, request: Judged) -> Forecast:
    """Predict a request with this much ahead of it in the queue."""
    slo, ahead, fleet, now = request.slo, request.ahead, state.fleet, state.now
    capacity = state.capacity.capacity(slo.pace_ms, now)
    work_ahead = QueueAhead(ahead.tokens + fleet.bound_tokens, ahead.requests)
    predicted = predict(request.cost, work_ahead, capacity, state.learnt.load(capacity.prefill_rate, now))
    ttft_s, wait_s = _on_soonest_worker(state, request, predicted)
    fixed_s = state.learnt.fixed_s(ttft_s - wait_s, now)
    predicted = replace(predicted, ttft_s=ttft_s + fixed_s, wait_s=wait_s, fixed_s=fixed_s)
    at_rest = ahead.requests == 0 and fleet.idle
    most_ttft = most_tpot = 1.0 if at_rest else math.inf
    if slo.tpot_ms is not None and cuts_steps(state.config.policy, capacity.roomiest.cost):
        # A ratio times its divisor may exceed the TPOT by a rounding, and would refuse what is kept.
        kept_s = max(predicted.least_pace_s, slo.tpot_ms / 1000 * (1 - 1e-9))
        most_tpot = min(most_tpot, kept_s / predicted.tpot_s)
    ttft, tpot = state.learnt.spreads(predicted, now, most_ttft, most_tpot)
    return Forecast(predicted, ttft, tpot, at_rest)


def _on_soonest_worker(state: RouterState, request: Judged, predicted: Prediction) -> tuple[float, float]:
    """Return the TTFT and the wait in it on the worker with the first token soonest.

    Where requests are bound late, they go to that worker. Baselines bind at arrival to the shortest queue,
    and the mean over the fleet stands. So it does where more requests stand ahead than there are workers:
    each worker has another prompt to take first.
    """
    ahead = request.ahead
    if state.config.policy.binds_at_arrival or ahead.requests > len(state.fleet.computing):
        return predicted.ttft_s + _most_load_s(state, request.adapter), predicted.wait_s
    lanes = _lanes(state, request)
    if not lanes:  # its adapter's last worker has left, and may be back
        return predicted.ttft_s, predicted.wait_s
    quickest = state.capacity.capacity(None, state.now).quickest
    held = held_by_workers(state, request.hits, ahead)
    wait_s, own_s = soonest(request.cost, ahead.tokens, lanes, held, quickest)
    if predicted.waits_for_slot:
        wait_s = max(wait_s, predicted.wait_s)
    return wait_s + own_s, wait_s


def _lanes(state: RouterState, request: Judged) -> list[Lane]:
    """Return the lanes of the workers that may take a request, with the time to load its adapter.

    If it is not known yet which of them takes it, the longest of these times counts for all of them.
    """
    lanes, adapter = state.capacity.lanes(state.now), request.adapter
    if not adapter:
        return lanes
    workers = {worker.key: worker for worker in state.fleet.computing if worker.has(adapter)}
    lanes = [lane for lane in lanes if lane.key in workers]
    if _takes_best(state, request.ahead):
        return [replace(lane, load_s=workers[lane.key].load_s(adapter)) for lane in lanes]
    most_s = _most_load_s(state, adapter)
    return [replace(lane, load_s=most_s) for lane in lanes]


def _takes_best(state: RouterState, ahead: QueueAhead) -> bool:
    """Return True if the worker that would have the first token soonest takes the next request."""
    if state.fleet.placement is Placement.CONDITIONAL:
        return True
    return ahead.requests == 0 and len(state.capacity.free_workers(state.now)) > max(1, len(state.waiting))


def _most_load_s(state: RouterState, adapter: str) -> float:
    """Return how long the slowest of the workers that have an adapter takes to load it."""
    if not adapter:
        return 0.0
    return max((worker.load_s(adapter) for worker in state.fleet.computing if worker.has(adapter)), default=0)


def held_by_workers(state: RouterState, hits: PrefixHits, ahead: QueueAhead) -> dict[str, HeldPrefix]:
    """Return what to count as held by some workers; for all others `held_everywhere` counts.

    The next request is offered to the workers that are free, or only to the soonest of these if they are more
    than the waiting requests: then each counts with what it holds. Otherwise any of them may take the
    request, and what all of them hold counts.
    """
    if not hits.has_any or ahead.requests > 0 or state.fleet.placement is Placement.CONDITIONAL:
        return {}
    free, size = state.capacity.free_workers(state.now), state.fleet.block_size
    if len(free) > max(1, len(state.waiting)):
        return {worker.key: hits.held_by(worker.key, size, worker.cost) for worker in free}
    least = _least_held(state, hits, free)
    return {worker.key: least for worker in free}


def held_everywhere(state: RouterState, hits: PrefixHits) -> HeldPrefix:
    """Return what every worker that computes prompts has of a prompt, by the one that has the least."""
    return _least_held(state, hits, state.fleet.computing)


def _least_held(state: RouterState, hits: PrefixHits, workers: Sequence[Worker]) -> HeldPrefix:
    size = state.fleet.block_size
    if not hits.has_reads:
        is_anywhere = hits.cached and len(hits.cached) >= len(workers)
        least = min((hits.cached.get(worker.key, 0) for worker in workers), default=0) if is_anywhere else 0
        return HeldPrefix(least * size)
    quickest = state.capacity.capacity(None, state.now).quickest
    held = (hits.held_by(worker.key, size, worker.cost) for worker in workers)
    return least_held(held, quickest.token_s)


# Judgements


def judge(state: RouterState, request: Judged, held_back_s: float = 0.0) -> Judgement:
    """Predict a request and decide on it.

    `held_back_s` is the time until its tenant and its class are within their shares. Here it is joined with
    the harm that the request would do to others: it yields for the longer of the two.
    """
    found = forecast(state, request)
    if not state.config.policy.promises:
        judgement = _decided(found, request.slo, 0.0)
        return replace(judgement, decision=unpromised(judgement.decision))
    return _decided(found, request.slo, max(held_back_s, _harm_s(state, request, found.ttft.q90)))


def _decided(found: Forecast, slo: Slo, yield_s: float) -> Judgement:
    """Decide on a forecast; a request with `yield_s` above 0 must leave the capacity to others."""
    decision = decide(slo, found.predicted, found.ttft, found.tpot, yield_s)
    return Judgement(decision, found.predicted, found.at_rest and decision.cause is Cause.OWN)


def judge_newcomer(state: RouterState, request: Judged, held_back_s: float = 0.0) -> Judgement:
    """Judge a newcomer.

    A request that would be refused may be tried instead. A short one may have to leave room for longer
    prompts while those get less than their share.
    """
    judgement = judge(state, request, held_back_s)
    if not state.config.policy.promises:
        return judgement
    if judgement.refused:
        return _tried(state, request, judgement)
    if request.slo.ttft_ms is None:
        return judgement
    return _leaving_room(state, request, judgement)


def class_wait_s(state: RouterState, slo: Slo) -> float:
    """Return the seconds until a class may get more of the fleet; 0 if now, or if nothing is promised."""
    if not state.config.policy.promises:
        return 0.0
    rate = state.capacity.prefill_rate(slo.pace_ms, state.now)
    return state.learnt.by_class.wait_s(slo.slo_class, rate, state.now)


def learn_length(state: RouterState, request: Judged, judgement: Judgement) -> None:
    """Count a decision by the prompt's length.

    A refused request whose SLO would be missed even with no prompt ahead of it, beside the running decodes,
    does not count: leaving room for it would not help.
    """
    slo, predicted, admitted = request.slo, judgement.predicted, not judgement.refused
    if slo.ttft_ms is None or not state.config.policy.promises:
        return
    if admitted or meets(slo, predicted.ttft_s - predicted.wait_s, predicted.tpot_s, predicted.itl_s):
        shares = state.learnt.by_length[slo.slo_class]
        shares.decided(request.cost.prompt_tokens, state.now, admitted=admitted)


def served_at(state: RouterState, request: Judged, judgement: Judgement) -> float:
    """Return when a refused request could be served; in an idle fleet, when it may be tried."""
    slo, tokens, now = request.slo, request.cost.prompt_tokens, state.now
    if judgement.may_be_tried:
        return now + state.learnt.trials.wait_s(tokens, slo, now)
    rate = state.capacity.prefill_rate(slo.pace_ms, now)
    deficit_s = max(0.0, judgement.decision.ttft_s - (slo.ttft_ms or 0) / 1000)
    load = state.learnt.load(rate, now)
    return next_virtual_finish(state.learnt.virtual_finish, now, deficit_s, tokens, rate, load)


def _harm_s(state: RouterState, request: Judged, stretch: float) -> float:
    """Return by how much a request would make others late that wait behind it (`Backlog.harm_s`).

    `stretch` is the late quantile of observed / predicted.
    """
    slo, waits, own_tokens = request.slo, request.waits, request.cost.prompt_tokens
    if not slo.is_stated or len(state.waiting) <= waits:
        return 0.0
    backlog = state.waiting.backlog
    # Other routers' waiting tokens are known by the work ahead alone: scale ours up to it.
    ours = backlog.tokens_before(slo.slo_class, request.due_at) - (own_tokens if waits else 0)
    capacity = state.capacity.capacity(slo.pace_ms, state.now)
    pace = Pace(
        now=state.now,
        start_tokens=state.fleet.bound_tokens,
        rate=capacity.prefill_rate,
        stretch=stretch,
        scale=max(1.0, request.ahead.tokens / ours) if ours > 0 else 1.0,
        lone_token_s=capacity.quickest.lone_token_s,
    )
    return backlog.harm_s(slo.slo_class, request.due_at, own_tokens, pace, waits=waits)


def _leaving_room(state: RouterState, request: Judged, judgement: Judgement) -> Judgement:
    """Return the judgement; a request is refused if it must leave room for longer prompts."""
    cost, slo, now = request.cost, request.slo, state.now
    # Lower classes give way first: their admitted requests are no load to this one.
    admitted = state.learnt.by_class.admitted_until(slo.slo_class, now)
    load = admitted / state.capacity.prefill_rate(slo.pace_ms, now)
    longer_by = state.learnt.by_length[slo.slo_class].longer_by(cost.prompt_tokens, load, now)
    if longer_by == 0:
        return judgement
    longer = replace(request, cost=replace(cost, prompt_tokens=cost.prompt_tokens + longer_by))
    # The requests behind are no later for it: the added length is not computed.
    as_longer = _decided(forecast(state, longer), slo, 0.0)
    if not as_longer.refused:
        return judgement
    decision = replace(as_longer.decision, cause=Cause.LENGTHS)
    return replace(judgement, decision=decision, may_be_tried=False)


def _tried(state: RouterState, request: Judged, judgement: Judgement) -> Judgement:
    """Return the judgement; a request is accepted as a trial if the fleet is idle and may try it."""
    cost, slo = request.cost, request.slo
    if not judgement.may_be_tried or state.learnt.trials.wait_s(cost.prompt_tokens, slo, state.now) > 0:
        return judgement
    # Only what is in memory: how long a read takes is as little known as what steps cost.
    cost = cost.with_cached(request.hits.most_cached() * state.fleet.block_size)
    floor = _floor_of(cost, state.fleet.computing, state.fleet.decoding)
    load_s = min((lane.load_s for lane in _lanes(state, request)), default=0.0) if request.adapter else 0.0
    floor = replace(floor, ttft_s=cost.waited_s + load_s + floor.ttft_s)
    if below_floor(slo, floor) is not None:
        return judgement
    trial = Decision(Verdict.ACCEPTED, floor.ttft_s, floor.step_s, floor.step_s, is_trial=True)
    return replace(judgement, decision=trial)
