"""A place in the queue was given: now the work ahead is known, and the promise is made or refused.

Where others wait, the newcomer's tenant is charged first: who is over its share is refused what it asks to be
promised, and put behind where it asks for nothing, or would rather be late than refused.
"""

from __future__ import annotations

import math
from dataclasses import replace

from router.core.actions import ChargeTenant, Dequeue, RequestRefused, TellQueued
from router.core.admission.newcomers import class_wait_s, come_back_in_s, judge_newcomer, learn_length
from router.core.admission.promising import Judgement, request_cost, tell_accepted
from router.core.admission.shedding import make_room
from router.core.queue.local_service import serve_stranded, work_before
from router.core.queue.queueing import expected_output, put_behind, strand, take_grant
from router.core.session import ending
from router.core.session.awaiting import check_worth_waiting, queue_full
from router.core.session.session import Group, Phase, Session
from router.core.state import RouterState
from router.errors import Reason, Refused, RouterError, Unavailable
from scheduling.admission.admission import Verdict, aim_of, rather_late
from scheduling.admission.prediction import QueueAhead, RequestCost
from scheduling.admission.shares import BAND_S, Standing, allowed_lead, virtual_tokens


def on_enqueued(state: RouterState, request_key: str, position: int, work_ahead_tokens: int) -> None:
    """Decide on a newcomer; whoever is admitted already just learns its place."""
    group = state.groups.get(request_key)
    if group is None:
        # Asked for twice, of which the first failed: nobody waits there any more.
        state.do(Dequeue(request_key))
        return
    if group.phase not in (Phase.ENQUEUEING, Phase.WAITING):
        return
    session = group.session
    ahead = QueueAhead(work_ahead_tokens, position)
    if not session.admitted:
        if ahead.requests > 0 and session.ahead is None and state.config.policy.promises:
            session.ahead = ahead
            _charge(state, session, group, ahead)
            return
        if _admit(state, session, group, ahead, 0.0):
            _take_place(state, session, group, ahead, 0.0)
        return
    _settle_in(state, session, group, ahead)


def on_charged(state: RouterState, request_key: str, standing: Standing | None) -> None:
    """What a tenant has had of the fleet is known, or cannot be: go on with admission."""
    group = state.groups.get(request_key)
    if group is None or group.session.ahead is None or group.session.admitted:
        return
    session, ahead, late_s = group.session, group.session.ahead, 0.0
    if standing is None or standing.is_over:
        session.charged_tokens = 0.0
    if standing is not None and standing.is_over and state.fleet.serves():
        rate = state.capacity.capacity(session.slo.pace_ms).prefill_rate
        late_s = max(0.001, standing.catch_up_s(_lead(state, session, ahead), rate))
    if not _admit(state, session, group, ahead, late_s):
        return
    _take_place(state, session, group, ahead, late_s)


def _charge(state: RouterState, session: Session, group: Group, ahead: QueueAhead) -> None:
    if not state.fleet.serves():
        on_charged(state, group.key, None)
        return
    weight = state.config.weights.of(session.tenant)
    output = expected_output(state, session) * group.num_seqs
    session.charged_tokens = virtual_tokens(group.work_tokens, output, weight)
    rate = state.capacity.capacity(session.slo.pace_ms).prefill_rate
    lead = _lead(state, session, ahead)
    state.do(ChargeTenant(group.key, session.tenant, session.charged_tokens, lead, BAND_S * rate))


def _lead(state: RouterState, session: Session, ahead: QueueAhead) -> float:
    """The lead, in virtual tokens, that its tenant may have over the least served one."""
    ttft_ms, rate = session.slo.ttft_ms, state.capacity.capacity(session.slo.pace_ms).prefill_rate
    patience_s = math.inf if ttft_ms is None else ttft_ms / 1000
    return allowed_lead((ahead.tokens + state.fleet.bound_tokens) / rate, BAND_S * rate, patience_s)


def _take_place(state: RouterState, session: Session, group: Group, ahead: QueueAhead, late_s: float) -> None:
    """Keep the place it has, or take a later one: over its share, or where it will miss its TTFT anyway."""
    is_early = session.aim.ttft_ms != session.slo.ttft_ms
    if (late_s > 0 or is_early) and group.early_grant is None:
        put_behind(state, group, late_s)
    else:
        _settle_in(state, session, group, ahead)


def _settle_in(state: RouterState, session: Session, group: Group, ahead: QueueAhead) -> None:
    if group.phase is Phase.ENQUEUEING:
        state.move(group, Phase.WAITING)
        group.stranded_at = None
    _tell_queued(state, session, ahead)
    state.grants_wanted = True
    if group.early_grant is not None:
        grant, group.early_grant = group.early_grant, None
        take_grant(state, group, grant)


def _admit(state: RouterState, session: Session, group: Group, ahead: QueueAhead, harm_s: float) -> bool:
    if not state.fleet.serves():
        ending.leave_queue(state, group)
        _wait_for_fleet(state, session)
        return False
    request = replace(request_cost(state, session, group), waited_s=state.now - session.timeline.received_at)
    shares, slo_class = state.learnt.by_class, session.slo.slo_class
    harm_s = max(harm_s, class_wait_s(state, session.slo))
    shares.asked(slo_class, group.work_tokens, state.now)
    hits = session.prefix_hits
    judgement = judge_newcomer(state, request, session.slo, group.due_at, ahead, hits, harm_s=harm_s)
    if judgement.decision.verdict is Verdict.REFUSED and harm_s == 0:
        judgement = make_room(state, group, request, ahead) or judgement
    if harm_s == 0:
        learn_length(state, request, session.slo, judgement)
    decision = rather_late(session.slo, judgement.decision)
    if decision.verdict is Verdict.REFUSED:
        _refuse(state, session, group, request, judgement)
        return False
    session.admitted = True
    state.promise(session, decision, aim_of(session.slo, decision))
    session.predicted = judgement.predicted
    if decision.is_trial:
        state.learnt.trials.begin(request.prompt_tokens, session.slo, state.now)
    state.learnt.admitted.add(group.work_tokens, state.now)
    shares.admitted(slo_class, group.work_tokens, state.now)
    state.counters.accepted += 1
    tell_accepted(state, session)
    return True


def _tell_queued(state: RouterState, session: Session, ahead: QueueAhead) -> None:
    if session.decision is not None and ahead.requests > 0:
        predicted_ms = session.decision.ttft_s * 1000
        for listener in session.listeners:
            state.do(TellQueued(listener, ahead.requests, ahead.tokens, predicted_ms))


def _refuse(
    state: RouterState, session: Session, group: Group, request: RequestCost, judgement: Judgement
) -> None:
    wait_s = come_back_in_s(state, judgement, request, session.slo, group.key)
    ending.leave_queue(state, group)
    turn_away(state, session, Refused(judgement.decision, wait_s))


def _wait_for_fleet(state: RouterState, session: Session) -> None:
    """The last decode worker was lost while the session was on its way into the queue."""
    try:
        check_worth_waiting(state, session)
    except RouterError as error:
        error.__traceback__ = None  # it would keep the frames above alive, which hold the error: a cycle
        turn_away(state, session, error)
    else:
        ending.withdraw(state, session)
        state.awaiting[session.sid] = session


def on_queue_full(state: RouterState, request_key: str) -> None:
    """A newcomer is turned away; what was admitted stays, and tries again."""
    group = state.groups.get(request_key)
    if group is None or group.phase not in (Phase.ENQUEUEING, Phase.WAITING):
        return
    if group.session.admitted:
        strand(state, group)
        return
    turn_away(state, group.session, queue_full(state))


def on_enqueue_failed(state: RouterState, group: Group, reason: str) -> None:
    """Without the store newcomers are served by what this router knows, if it may; else none is admitted.

    What was admitted survives in this router.
    """
    if group.session.admitted:
        strand(state, group)
    elif state.config.serves_without_store:
        if len(state.stranded) >= state.config.queue_capacity:
            on_queue_full(state, group.key)
        elif _admit(state, group.session, group, work_before(state, group), 0.0):
            strand(state, group)
            serve_stranded(state)
    else:
        turn_away(
            state,
            group.session,
            Unavailable(
                Reason.REDIS_AWAY, f"Redis, which holds the fleet's queue, does not answer: {reason}"
            ),
        )


def turn_away(state: RouterState, session: Session, error: RouterError) -> None:
    """Refuse a session for which nothing was generated here."""
    state.counters.refused += 1
    state.do(RequestRefused(session.slo.slo_class, error))
    ending.turn_away(state, session, error)
    ending.forget(state, session)
