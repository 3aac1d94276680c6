"""Puts some waiting requests behind the others, without their SLO, so that most are in time.

This happens when a request arrives, and regularly by a plan for all that wait, which
`scheduling/admission/shedding.py` makes and this module applies. Requests at risk are put behind, as their
callers prefer late tokens to a refusal; accepted requests are only when capacity was lost. The full plan is
made at most `PLANS_PER_S` times a second, less often the more requests wait, and only while some may be put
behind. It uses the early quantile of what was learnt, so a request that could still be in time keeps its SLO.
"""

from __future__ import annotations

from dataclasses import replace

from router.core.actions import PromiseBroken, RequestShed
from router.core.admission.judge import Judged, Judgement, judge
from router.core.queue.queue import put_behind, set_decision
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.admission.admission import Verdict
from scheduling.admission.prediction import QueueAhead
from scheduling.admission.shedding import Plan, Service, plan

PLANS_PER_S = 20.0
PLANNED_PER_S = 20_000
"""The most requests to plan in a second: with more than 1000 waiting, plans are made less often."""
EARLIEST = 0.1
"""The least ratio to a predicted time that a plan counts on."""
BROKEN_DELAY_S = 600.0
"""A request whose promise was given up is served after all that can still be in time."""


def make_room(state: RouterState, group: Group, request: Judged) -> Judgement | None:
    """Put the class's largest request at risk behind, if the smaller newcomer can then be accepted."""
    victim = state.waiting.largest_at_risk(request.slo.slo_class)
    if victim is None or victim.work_tokens <= group.work_tokens or victim.phase is not Phase.WAITING:
        return None
    if victim.due_at <= group.due_at:
        ahead = request.ahead
        tokens, requests = max(0, ahead.tokens - victim.work_tokens), max(0, ahead.requests - 1)
        request = replace(request, ahead=QueueAhead(tokens, requests))
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
