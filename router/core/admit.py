"""Decides on a newcomer once it has a place in the queue: only now the work ahead of it is known.

    on_enqueued      the store gave it a place: judged at once, unless others are ahead of it
    on_charged       others are ahead, so its tenant was charged first: now it is judged
    on_queue_full    the store has no place: turned away
    plan_if_due      some that wait give up their SLO, so that the others are in time

Two shares can hold a request back: its tenant's (`tenant_wait_s`) and its class's (`class_wait_s`). Until it
is within both, a request is refused what it asks to be promised. Over its tenant's share, a request that asks
for nothing, or prefers late tokens to a refusal, is put behind.

A newcomer can also take the place of a larger request at risk, and a plan for all that wait is made regularly
(`scheduling/admission/shedding.py`). Requests at risk are put behind, as their callers prefer late tokens to
a refusal; accepted requests are only when capacity was lost. The full plan is made at most `PLANS_PER_S`
times a second, less often the more requests wait, and only while some may be put behind. It uses the early
quantile of what was learnt, so a request that could still be in time keeps its SLO.
"""

from __future__ import annotations

import math
from dataclasses import replace

from router.core import finish
from router.core.dispatch import (
    expected_output,
    leave_queue,
    promise_of,
    put_behind,
    set_decision,
    set_phase,
    strand,
    tell_accepted,
)
from router.core.grant import take_grant
from router.core.judge import (
    Judged,
    Judgement,
    check_slo,
    class_wait_s,
    held_everywhere,
    judge,
    judge_newcomer,
    learn_length,
    served_at,
)
from router.core.model.actions import (
    ChargeTenant,
    Dequeue,
    PromiseBroken,
    Reject,
    RequestRefused,
    RequestShed,
    TellQueued,
    TellQuoted,
)
from router.core.model.events import Enqueued, QuoteAsked
from router.core.model.session import IN_QUEUE, Group, Phase, Session
from router.core.model.state import RouterState
from router.errors import Overloaded, Reason, Refused, RouterError, Unavailable
from scheduling.admission.admission import Verdict, aim_of, rather_late, retry_after_s
from scheduling.admission.backlog import due_at
from scheduling.admission.prefixes import PrefixHits
from scheduling.admission.shares import BAND_S, Standing, allowed_lead, virtual_tokens
from scheduling.admission.shedding import Plan, Service, plan
from scheduling.prediction import QueueAhead, RequestCost, blocks_needed
from scheduling.request import Slo

PLANS_PER_S = 20.0
PLANNED_PER_S = 20_000
"""The most requests to plan in a second: with more than 1000 waiting, plans are made less often."""
EARLIEST = 0.1
"""The least ratio to a predicted time that a plan counts on."""
BROKEN_DELAY_S = 600.0
"""A request whose promise was given up is served after all that can still be in time."""


def on_enqueued(state: RouterState, event: Enqueued) -> None:
    """Decide on a newcomer; a group that is admitted already just keeps its place."""
    group = state.groups.get(event.request_key)
    if group is None:
        # Asked for twice, and the first call failed: nothing waits there any more.
        state.actions.append(Dequeue(event.request_key))
        return
    if group.phase not in IN_QUEUE:
        return
    session = group.session
    ahead = QueueAhead(event.work_ahead_tokens, event.position)
    if session.admitted:
        _keep_place(state, group, ahead)
    elif ahead.requests > 0 and session.ahead is None and state.config.policy.promises:
        session.ahead = ahead
        _charge(state, group, ahead)
    elif admit(state, group, ahead, 0.0):
        _take_place(state, group, ahead, 0.0)


def on_charged(state: RouterState, request_key: str, standing: Standing | None) -> None:
    """Go on with admission: what the tenant has had of the fleet is known, or cannot be known (None)."""
    group = state.groups.get(request_key)
    if group is None or group.session.ahead is None or group.session.admitted:
        return
    session, tenant_wait_s = group.session, 0.0
    ahead = state.waiting.ahead_of(group, group.session.ahead)
    if standing is not None and standing.is_over:
        session.charged_tokens = 0.0  # without an answer it may have been charged: a refund finds out
    if standing is not None and standing.is_over and state.fleet.serves:
        rate = state.capacity.prefill_rate(session.request.slo.pace_ms, state.now)
        tenant_wait_s = max(0.001, standing.catch_up_s(_lead(state, session, ahead), rate))
    if admit(state, group, ahead, tenant_wait_s):
        _take_place(state, group, ahead, tenant_wait_s)


def on_queue_full(state: RouterState, request_key: str) -> None:
    """Turn a newcomer away; a group that was admitted stays, and tries again."""
    group = state.groups.get(request_key)
    if group is None or group.phase not in IN_QUEUE:
        return
    if group.session.admitted:
        strand(state, group)
        return
    turn_away(state, group.session, queue_full(state))


def _charge(state: RouterState, group: Group, ahead: QueueAhead) -> None:
    session = group.session
    if not state.fleet.serves:
        on_charged(state, group.key, None)
        return
    weight = state.config.weights.of(session.request.tenant)
    output = expected_output(session, state.learnt) * group.num_seqs
    session.charged_tokens = virtual_tokens(group.work_tokens, output, weight)
    band = BAND_S * state.capacity.prefill_rate(session.request.slo.pace_ms, state.now)
    lead = _lead(state, session, ahead)
    state.actions.append(ChargeTenant(group.key, session.request.tenant, session.charged_tokens, lead, band))


def _lead(state: RouterState, session: Session, ahead: QueueAhead) -> float:
    """Return the lead, in virtual tokens, that the tenant may have over the least served one."""
    slo = session.goal
    ttft_ms, rate = slo.ttft_ms, state.capacity.prefill_rate(slo.pace_ms, state.now)
    patience_s = math.inf if ttft_ms is None else ttft_ms / 1000
    return allowed_lead((ahead.tokens + state.fleet.bound_tokens) / rate, BAND_S * rate, patience_s)


def admit(state: RouterState, group: Group, ahead: QueueAhead, tenant_wait_s: float) -> bool:
    """Judge a newcomer, and accept or refuse it.

    `tenant_wait_s` is the time until the other tenants have caught up with its own; 0 within its share. A
    call whose program implies more than the call states gets the later place of what it states, and is judged
    there, if the program cannot be in time or would make others late.
    """
    session = group.session
    if not state.fleet.serves:
        leave_queue(state, group)
        _wait_for_fleet(state, session)
        return False
    held_back_s = max(tenant_wait_s, class_wait_s(state, session.goal))
    has_later_place = session.request.slo.is_stated and session.goal != session.request.slo
    if has_later_place and (held_back_s > 0 or group.early_grant is not None):
        has_later_place, session.goal, session.aim = False, session.request.slo, session.request.slo
    slo, now = session.goal, state.now
    request = _request(state, group, ahead)
    judgement = judge_newcomer(state, request, held_back_s)
    if has_later_place and judgement.decision.verdict is not Verdict.ACCEPTED:
        session.goal = session.aim = session.request.slo
        put_behind(state, group, 0.0)
        return False
    state.learnt.by_class.asked(slo.slo_class, group.work_tokens, now)
    if held_back_s == 0:
        if judgement.refused:
            judgement = make_room(state, group, request) or judgement
        learn_length(state, request, judgement)
    decision = rather_late(slo, judgement.decision)
    if decision.verdict is Verdict.REFUSED:
        finish_at = served_at(state, request, judgement)
        if not judgement.may_be_tried:
            state.learnt.virtual_finish = finish_at
        leave_queue(state, group)
        if ahead.requests >= len(state.groups):  # some of it is not this router's, whatever its groups do
            state.queue_stands = state.offer_due = True
        turn_away(state, session, Refused(judgement.decision, retry_after_s(finish_at, now, group.key)))
        return False
    session.admitted, session.predicted = True, judgement.predicted
    set_decision(state, session, decision, aim_of(slo, decision))
    if decision.is_trial:
        state.learnt.trials.begin(request.cost.prompt_tokens, slo, now)
    state.learnt.admit(slo.slo_class, group.work_tokens, now)
    state.counters.accepted += 1
    tell_accepted(state, session)
    return True


def _request(state: RouterState, group: Group, ahead: QueueAhead) -> Judged:
    session = group.session
    held = held_everywhere(state, session.prefix_hits)
    cost = RequestCost(
        prompt_tokens=group.work_tokens,
        cached_tokens=held.num_tokens,
        blocks=group.blocks,
        num_seqs=group.num_seqs,
        waited_s=state.now - session.timeline.received_at,
        read_s=held.read_s,
    )
    adapter = session.request.adapter
    return Judged(cost, session.goal, group.due_at, ahead, session.prefix_hits, adapter=adapter)


def _take_place(state: RouterState, group: Group, ahead: QueueAhead, tenant_wait_s: float) -> None:
    """Keep the place, or take a later one if the tenant is over its share or the TTFT will be missed."""
    aims_lower = group.session.aim.ttft_ms != group.session.goal.ttft_ms
    if (tenant_wait_s > 0 or aims_lower) and group.early_grant is None:
        put_behind(state, group, tenant_wait_s)
    else:
        _keep_place(state, group, ahead)


def _keep_place(state: RouterState, group: Group, ahead: QueueAhead) -> None:
    if group.phase is Phase.ENQUEUEING:
        set_phase(state, group, Phase.WAITING)
        group.stranded_at = None
    decision = group.session.decision
    if decision is not None and ahead.requests > 0:
        for listener in group.session.listeners:
            told = TellQueued(listener, ahead.requests, ahead.tokens, decision.ttft_s * 1000)
            state.actions.append(told)
    state.offer_due = True
    if group.early_grant is not None:
        grant, group.early_grant = group.early_grant, None
        take_grant(state, group, grant)


def turn_away(state: RouterState, session: Session, error: RouterError) -> None:
    """Refuse a session for which nothing was generated here."""
    state.counters.refused += 1
    state.actions.append(RequestRefused(session.request.slo.slo_class, error))
    finish.end_calls(state, session, error)
    finish.forget(state, session)


# Newcomers that wait for a fleet which has lost its last decode worker a moment ago


def _wait_for_fleet(state: RouterState, session: Session) -> None:
    """Let a session wait: the last decode worker was lost while it was on its way into the queue."""
    try:
        check_worth_waiting(state, session)
    except RouterError as error:
        error.__traceback__ = None  # it would keep the frames above alive, which hold the error: a cycle
        turn_away(state, session, error)
    else:
        finish.withdraw(state, session)
        state.awaiting[session.sid] = session


def check_worth_waiting(state: RouterState, session: Session) -> None:
    """Raise RouterError if a call must not wait for a decode worker.

    A worker that is restarted, or whose link broke, is back within seconds. A call that comes meanwhile is
    kept, in no queue and without an answer. It waits until the TTFT that it states has passed, and at most
    until `no_worker_grace_s` after the last decode worker was lost. After that, a fleet without a decode
    worker refuses at once. As in the queue, only newcomers need a free place: who resumes was accepted.
    """
    if is_over(state, session):
        raise no_worker()
    if session.number == 0 and len(state.awaiting) >= state.config.queue_capacity:
        raise queue_full(state)


def is_over(state: RouterState, session: Session) -> bool:
    """Return True if a call has waited for a decode worker for as long as it may."""
    return state.now >= min(state.served_at + state.config.no_worker_grace_s, session.ttft_due_at)


def no_worker() -> Unavailable:
    """Return the error for a call that no worker could serve."""
    return Unavailable(Reason.NO_WORKER, "no decode worker is connected")


def queue_full(state: RouterState) -> Overloaded:
    """Return the error for a call that comes when the most calls that may wait are waiting."""
    capacity = state.config.queue_capacity
    wait_s = min(60.0, 0.1 + state.queue.waiting * 0.01)
    why = f"the fleet's queue is full: {capacity} requests wait"
    return Overloaded(Reason.QUEUE_FULL, why, wait_s, limit=capacity)


# Quotes: what a request would be promised now, without sending it


def on_quote_asked(state: RouterState, event: QuoteAsked) -> None:
    """Quote at once: the listener gets `TellQuoted` or `Reject`.

    The request is judged as admission would judge it, behind everything that waits, and takes the time of no
    worker. Like every decision it depends on when it is made, so it is an event of the core: a replay makes
    it again.
    """
    try:
        state.actions.append(_quoted(state, event))
    except RouterError as error:
        error.__traceback__ = None  # it would keep the frames above alive, which hold the error: a cycle
        state.actions.append(Reject(event.listener, error))


def _quoted(state: RouterState, event: QuoteAsked) -> TellQuoted:
    if not state.fleet.serves:
        raise no_worker()
    prompt, n, slo = event.prompt_tokens, event.num_choices, event.slo
    blocks = blocks_needed(prompt, event.max_tokens, n, state.fleet.block_size)
    cost = RequestCost(prompt, 0, blocks, n, event.waited_s)
    ahead = QueueAhead(event.waiting_tokens, event.waiting)
    request, judgement = judge_quote(state, cost, slo, ahead, event.hits, event.adapter)
    decision = rather_late(slo, judgement.decision)
    refused = None
    if decision.verdict is Verdict.REFUSED:
        # It does not move the times that other refusals get.
        wait_s = retry_after_s(served_at(state, request, judgement), state.now, "")
        refused = Refused(decision, wait_s)
    return TellQuoted(event.listener, decision.verdict, promise_of(slo, decision), prompt, refused)


def judge_quote(
    state: RouterState, cost: RequestCost, slo: Slo, ahead: QueueAhead, hits: PrefixHits, adapter: str = ""
) -> tuple[Judged, Judgement]:
    """Judge a request that is not sent; raise RouterError as sending it would."""
    check_slo(state, cost, slo, hits)
    held = held_everywhere(state, hits)
    cost = cost.with_cached(held.num_tokens, held.read_s)
    held_back_s = class_wait_s(state, slo)
    request = Judged(cost, slo, due_at(slo, state.now), ahead, hits, waits=False, adapter=adapter)
    return request, judge_newcomer(state, request, held_back_s)


# Requests that are put behind


def make_room(state: RouterState, group: Group, request: Judged) -> Judgement | None:
    """Put the class's largest request at risk behind, if the smaller newcomer can then be accepted."""
    victim = state.waiting.largest_at_risk(request.slo.slo_class)
    if victim is None or victim.work_tokens <= group.work_tokens or victim.phase is not Phase.WAITING:
        return None
    if victim.due_at <= group.due_at:
        request = replace(request, ahead=request.ahead.changed(-victim.work_tokens, -1))
    state.waiting.remove(victim)
    judgement = judge(state, request)
    state.waiting.add(victim, state.now)
    if judgement.decision.verdict is not Verdict.ACCEPTED:
        return None
    _shed(state, victim)
    return judgement


def plan_if_due(state: RouterState) -> None:
    """Make the full plan, if it is wanted, could put any request behind, and was not made just now."""
    least_s = max(1 / PLANS_PER_S, len(state.waiting) / PLANNED_PER_S)
    if not state.plan_wanted or state.now - state.planned_at < least_s:
        return
    state.plan_wanted = False
    if not state.config.policy.promises or not state.fleet.serves:
        return
    if not state.waiting.has_at_risk and not (state.capacity_died and state.waiting):
        state.capacity_died = False
        return
    state.planned_at = state.now
    _carry_out(state, full_plan(state))


def full_plan(state: RouterState) -> Plan:
    """Return the plan for all groups of this router that wait."""
    capacity = state.capacity.capacity(None, state.now)
    wait_s = state.fleet.bound_tokens / capacity.prefill_rate
    q10, _ = state.learnt.ttft_quantiles(wait_s, state.now)
    service = Service(
        now=state.now,
        rate=capacity.prefill_rate / max(EARLIEST, q10),
        num_workers=capacity.num_computing,
        start_tokens=state.fleet.bound_tokens,
    )
    return plan(state.waiting.entries, service, may_break=state.capacity_died)


def _carry_out(state: RouterState, made: Plan) -> None:
    for key in made.shed:
        if state.groups[key].phase is Phase.WAITING:
            _shed(state, state.groups[key])
    for key in made.broken:
        group = state.groups[key]
        state.actions.append(PromiseBroken(key))
        if group.phase is Phase.WAITING:
            put_behind(state, group, BROKEN_DELAY_S)
    if not made.broken:
        state.capacity_died = False


def _shed(state: RouterState, group: Group) -> None:
    """Give up a request's TTFT: from now on it waits like a request that asked for none."""
    session = group.session
    assert session.decision is not None, "a request at risk was decided on"
    set_decision(state, session, session.decision, replace(session.aim, ttft_ms=None))
    put_behind(state, group, 0.0)
    state.actions.append(RequestShed(group.key))
