"""How a newcomer is judged: invalid if impossible, tried by an idle fleet, given its share by a busy one.

A refused request gets a time to come back, at which the decision can be another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from router.core.admission.promising import NO_HITS, Judgement, foresee, judge, load_of
from router.core.admission.slo_floor import Bare, Impossible, bare, impossible
from router.core.capacity.fleet import DECODE, Worker
from router.core.session.session import Session
from router.core.state import RouterState
from router.errors import Reason, ValidationError
from scheduling.admission.admission import Cause, Decision, Verdict, meets, next_virtual_finish, retry_after_s
from scheduling.admission.prediction import QueueAhead, RequestCost
from scheduling.request import MAX_SLO_MS, Slo


def check_possible(state: RouterState, request: RequestCost, slo: Slo) -> None:
    """Raise ValidationError for an SLO that even an idle fleet could not meet.

    Baselines accept any SLO, and so does every fleet if the request sets `allow_at_risk`.
    """
    if slo.allow_at_risk or not (slo.is_stated and state.config.policy.promises):
        return
    computing, decoding = state.fleet.computing, state.fleet.open(DECODE)
    # If one worker could do it, the fleet could: mostly there is no need to ask the others.
    found = _impossible(request, slo, computing[:1], decoding[:1]) and _impossible(
        request, slo, computing, decoding
    )
    if found is not None:
        accepted = f"{found.least_ms} to {MAX_SLO_MS}, or unset: less no worker of this fleet takes when idle"
        raise ValidationError(
            found.field, found.value_ms, accepted, Reason.SLO_IMPOSSIBLE, limit=found.least_ms
        )


def _impossible(
    request: RequestCost, slo: Slo, computing: Sequence[Worker], decoding: Sequence[Worker]
) -> Impossible | None:
    return impossible(slo, _bare(request, computing, decoding))


def _bare(request: RequestCost, computing: Sequence[Worker], decoding: Sequence[Worker]) -> Bare:
    budgets = [(worker.quickest, worker.facts.token_budget) for worker in computing]
    return bare(request, budgets, [worker.quickest for worker in decoding])


def request_cost_alone(state: RouterState, session: Session) -> RequestCost:
    """Describe a request before it has groups, with the longest prefix that any worker may have cached."""
    request = RequestCost(len(session.prompt_token_ids), 0, 0, len(session.choices))
    return with_most_cached(state, request, session.prefix_hits)


def with_most_cached(state: RouterState, request: RequestCost, hits: Mapping[str, int]) -> RequestCost:
    """Return the request as the worker with the most cached blocks sees it; `hits` are blocks by worker."""
    return replace(request, cached_tokens=max(hits.values(), default=0) * state.fleet.block_size)


def judge_newcomer(
    state: RouterState,
    request: RequestCost,
    slo: Slo,
    due_at: float,
    ahead: QueueAhead,
    hits: Mapping[str, int] = NO_HITS,
    *,
    waits: bool = True,
    harm_s: float = 0.0,
) -> Judgement:
    """Judge a newcomer. Arguments are those of `judge`.

    A request that would be refused may be tried instead. A short one may have to leave room for longer
    prompts while those get less than their share.
    """
    judgement = judge(state, request, slo, due_at, ahead, hits, waits=waits, harm_s=harm_s)
    if not state.config.policy.promises:
        return judgement
    if judgement.decision.verdict is Verdict.REFUSED:
        return _tried(state, request, slo, hits, judgement)
    if slo.ttft_ms is None:
        return judgement
    # Lower classes give way first: their admitted requests are no load to this one.
    admitted = state.learnt.by_class.admitted_until(slo.slo_class, state.now)
    load = admitted / state.capacity.capacity(slo.pace_ms).prefill_rate
    longer_by = state.learnt.by_length[slo.slo_class].held_back(request.prompt_tokens, load, state.now)
    if longer_by == 0:
        return judgement
    longer = replace(request, prompt_tokens=request.prompt_tokens + longer_by)
    # Requests behind it are no later for it: the length that was added to judge it is not computed.
    held_back = foresee(state, longer, slo, ahead, hits).judged(slo)
    if held_back.decision.verdict is not Verdict.REFUSED:
        return judgement
    return replace(judgement, decision=replace(held_back.decision, cause=Cause.LENGTHS))


def _tried(
    state: RouterState, request: RequestCost, slo: Slo, hits: Mapping[str, int], judgement: Judgement
) -> Judgement:
    """Return the judgement; a refused request is accepted as a trial if the fleet is idle and may try it."""
    if not _may_be_tried(judgement) or state.learnt.trials.wait_s(request.prompt_tokens, slo, state.now) > 0:
        return judgement
    request = with_most_cached(state, request, hits)
    least = _bare(request, state.fleet.computing, state.fleet.open(DECODE))
    least = replace(least, ttft_s=request.waited_s + least.ttft_s)
    if impossible(slo, least) is not None:
        return judgement
    trial = Decision(Verdict.ACCEPTED, least.ttft_s, least.step_s, least.step_s, is_trial=True)
    return replace(judgement, decision=trial)


def _may_be_tried(judgement: Judgement) -> bool:
    return judgement.at_rest and judgement.decision.cause is Cause.OWN


def class_wait_s(state: RouterState, slo: Slo) -> float:
    """Return the seconds until a class may get more of the fleet; 0 if now, or if nothing is promised."""
    if not state.config.policy.promises:
        return 0.0
    rate = state.capacity.capacity(slo.pace_ms).prefill_rate
    return state.learnt.by_class.wait_s(slo.slo_class, rate, state.now)


def learn_length(state: RouterState, request: RequestCost, slo: Slo, judgement: Judgement) -> None:
    """Count a decision by the prompt's length.

    A refused request whose SLO would be missed even with no prompt ahead of it, beside the running decodes,
    does not count: leaving room for it would not help.
    """
    if slo.ttft_ms is None or not state.config.policy.promises:
        return
    decision, predicted = judgement.decision, judgement.predicted
    admitted = decision.verdict is not Verdict.REFUSED
    if admitted or meets(slo, predicted.ttft_s - predicted.wait_s, predicted.tpot_s, predicted.itl_s):
        state.learnt.by_length[slo.slo_class].decided(request.prompt_tokens, state.now, admitted=admitted)


def come_back_in_s(
    state: RouterState, judgement: Judgement, request: RequestCost, slo: Slo, request_key: str
) -> float:
    """Return when a refused request should try again; successive refusals get successive times."""
    finish = _served_at(state, judgement, request, slo)
    if not _may_be_tried(judgement):
        state.learnt.virtual_finish = finish
    return retry_after_s(finish, state.now, request_key)


def would_come_back_in_s(state: RouterState, judgement: Judgement, request: RequestCost, slo: Slo) -> float:
    """Return the same for a request that is not sent: it does not move the times of other refusals."""
    return retry_after_s(_served_at(state, judgement, request, slo), state.now, "")


def _served_at(state: RouterState, judgement: Judgement, request: RequestCost, slo: Slo) -> float:
    """Return when a refused request could be served; in an idle fleet, when it may be tried."""
    if _may_be_tried(judgement):
        return state.now + state.learnt.trials.wait_s(request.prompt_tokens, slo, state.now)
    capacity = state.capacity.capacity(slo.pace_ms)
    rate, load = capacity.prefill_rate, load_of(state, capacity)
    deficit_s = max(0.0, judgement.decision.ttft_s - (slo.ttft_ms or 0) / 1000)
    return next_virtual_finish(
        state.learnt.virtual_finish, state.now, deficit_s, request.prompt_tokens, rate, load
    )
