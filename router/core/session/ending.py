"""How groups and sessions end; each ends once, and what it held is returned."""

from __future__ import annotations

from router.core.actions import (
    Dequeue,
    Marks,
    Outcome,
    RefundTenant,
    Reject,
    RequestEnded,
    SendCancel,
    TellChoiceFinished,
    TellFinished,
)
from router.core.admission.promising import promise_of, tell_accepted
from router.core.capacity.fleet_capacity import TPOT_SCALE
from router.core.dispatch.moves import call_off
from router.core.queue.queueing import give_back, release
from router.core.session.session import Group, Phase, Session
from router.core.session.slo_attainment import kept
from router.core.state import RouterState
from router.errors import Reason, RouterError, Superseded, Unavailable
from scheduling.request import FinishReason


def end_group(state: RouterState, group: Group) -> None:
    """All its choices have ended by themselves."""
    # A choice that ended with the prefill worker's first token is never started on the decode worker.
    detach(state, group, tell_workers=not group.decode_reported)
    # Groups may end in one step: then no choice is open, and still this one is not the last.
    if not group.session.groups and not any(choice.open for choice in group.session.choices):
        finish(state, group.session)


def leave_queue(state: RouterState, group: Group) -> None:
    """It waits no more, granted or not."""
    if group.early_grant is None:
        state.do(Dequeue(group.key))
    else:
        give_back(state, group.early_grant)
        group.early_grant = None


def detach(state: RouterState, group: Group, *, tell_workers: bool, but: str | None = None) -> None:
    """The group is over: no worker computes it, no report finds it, nothing is held for it."""
    if group.phase in (Phase.ENQUEUEING, Phase.WAITING, Phase.SETTLING):
        leave_queue(state, group)
    move = state.moves.pop(group.key, None)
    if move is not None:
        call_off(state, move)
    if group.phase is Phase.RUNNING:
        for worker in state.fleet.alive((group.prefill_key, group.decode_key)):
            del worker.groups[group.handle]
            if worker.key == group.decode_key:
                worker.let_go(group)
                worker.preempted.pop(group.handle, None)
            if tell_workers and worker.key != but:
                state.do(SendCancel(worker.key, (group.handle,)))
    release(state, group)
    state.move(group, Phase.ENDED)
    del state.groups[group.key]
    group.session.groups.remove(group)
    group.part()


def cut_off(state: RouterState, session: Session, reason: FinishReason, error: str = "") -> None:
    """End what has not ended, wherever it is."""
    session.error = error
    if not session.admitted:
        tell_accepted(state, session)
    for group in list(session.groups):
        detach(state, group, tell_workers=True)
    for choice in session.choices:
        if choice.open:
            choice.finish = reason
            for listener in session.listeners:
                state.do(TellChoiceFinished(listener, choice.index, reason, len(choice.token_ids)))
    finish(state, session)


def break_off(state: RouterState, session: Session) -> None:
    """This router leaves: the call breaks, so that a client that resumes goes on elsewhere."""
    turn_away(state, session, _leaving())
    abandon(state, session)


def _leaving() -> Unavailable:
    return Unavailable(Reason.ROUTER_LEAVING, "this router is shutting down; resume on another one")


def finish(state: RouterState, session: Session) -> None:
    """Every choice has ended: say so, learn from it, and remember it for a while."""
    assert not session.groups, "a session ends after its groups"
    session.timeline.ended_at = state.now
    state.close_session(session, remember=True)
    outcome = outcome_of(session)
    _learn(state, session)
    _learn_trial(state, session, outcome)
    _count(state, session)
    state.do(RequestEnded(session.group_key(0), outcome))
    _tell(state, session, outcome)


def tell_finished(state: RouterState, session: Session) -> None:
    """The last event, if anyone listens."""
    _tell(state, session, outcome_of(session))


def _tell(state: RouterState, session: Session, outcome: Outcome) -> None:
    for listener in session.listeners:
        state.do(TellFinished(listener, outcome))
    state.unlisten_all(session)


def turn_away(state: RouterState, session: Session, error: RouterError) -> None:
    """End every call of the session with an error."""
    for listener in session.listeners:
        state.do(Reject(listener, error))
    state.unlisten_all(session)


def supersede(state: RouterState, session: Session, number: int) -> None:
    """End the calls of earlier sessions: a later one takes the request over."""
    turn_away(state, session, Superseded(session.number, number))


def withdraw(state: RouterState, session: Session) -> None:
    """Take a session that was not admitted back out of the queue's books; it goes on without groups."""
    if session.charged_tokens > 0:
        state.do(RefundTenant(session.tenant, session.charged_tokens))
    session.charged_tokens, session.ahead = 0.0, None
    for group in list(session.groups):
        state.move(group, Phase.ENDED)
        del state.groups[group.key]
        group.part()
    session.groups.clear()


def forget(state: RouterState, session: Session) -> None:
    """Forget a session for which nothing was generated, as if it had never arrived."""
    withdraw(state, session)
    state.unlisten_all(session)
    session.timeline.ended_at = state.now
    state.close_session(session, remember=False)


def abandon(state: RouterState, session: Session) -> None:
    """Free all of a request and remember nothing: its client goes on without what this router has of it."""
    if session.ended:
        state.retained.pop(session.name, None)
        state.by_sid.pop(session.sid, None)
        return
    for group in list(session.groups):
        detach(state, group, tell_workers=True)
    session.timeline.ended_at = state.now
    supersede(state, session, session.number + 1)
    state.close_session(session, remember=False)


def outcome_of(session: Session) -> Outcome:
    """What became of an ended session."""
    timeline = session.timeline
    assert timeline.ended_at is not None, "an outcome is of an ended session"
    ended = timeline.ended_at
    new_tokens = sum(len(choice.token_ids) for choice in session.choices) - sum(session.received_tokens)
    return Outcome(
        slo_class=session.slo.slo_class,
        promise=promise_of(session),
        marks=Marks(
            timeline.received_at,
            _mark(timeline.dispatched_at, ended),
            _mark(timeline.first_token_at, ended),
            _mark(timeline.decode_at, ended),
            ended,
        ),
        has_tokens=new_tokens > 0,
        prompt_tokens=len(session.prompt_token_ids),
        cached_prompt_tokens=session.cached_tokens,
        output_tokens=sum(len(choice.token_ids) for choice in session.choices),
        attempts=session.attempts,
        path=session.path,
        tpot_s=session.tpot_s(),
        max_gap_s=session.max_gap_s,
        reasons=tuple(choice.finish for choice in session.choices),
        error=session.error,
    )


def _mark(at: float | None, ended: float) -> float:
    return ended if at is None else at


def _learn(state: RouterState, session: Session) -> None:
    for choice in session.choices:
        if choice.finish in (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH):
            state.learnt.lengths[session.slo.slo_class].add(len(choice.token_ids))
    tpot_s = session.tpot_s()
    if session.predicted is not None and tpot_s is not None and session.attempts == 1:
        predicted = session.predicted
        state.learnt.tpot.add(predicted.batch_size * TPOT_SCALE, tpot_s / predicted.tpot_s, state.now)


def _learn_trial(state: RouterState, session: Session, outcome: Outcome) -> None:
    if session.decision is None or not session.decision.is_trial or not outcome.has_tokens:
        return
    ttft_ms = (outcome.marks.first_token_at - outcome.marks.received_at) * 1000
    tpot_ms = None if outcome.tpot_s is None else outcome.tpot_s * 1000
    if kept(outcome.promise, ttft_ms, tpot_ms, outcome.max_gap_s * 1000).all:
        state.learnt.trials.succeed()


def _count(state: RouterState, session: Session) -> None:
    reasons = {choice.finish for choice in session.choices}
    if FinishReason.FAILED in reasons:
        state.counters.failed += 1
    elif FinishReason.CANCELLED in reasons:
        state.counters.cancelled += 1
    else:
        state.counters.finished += 1
    first_at = session.timeline.first_token_at
    if session.slo.ttft_ms is None or session.number > 0:
        return
    if first_at is not None and first_at <= session.due_at:
        state.counters.ttft_promises_kept += 1
    elif first_at is not None or FinishReason.CANCELLED not in reasons:
        state.counters.ttft_promises_broken += 1
