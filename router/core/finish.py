"""How groups and sessions end: each ends once, and all that it held is returned.

end_group       all choices of a group have ended by themselves; its session may have too
cut_off         a cancel, a deadline or too many failures end what has not ended
abandon         the client goes on elsewhere: free all, remember nothing
forget          a request for which nothing was generated, as if it had never arrived
no_worker_came  no worker for it is connected here: another router may have one
leave           this router is about to end
"""

from __future__ import annotations

from router.core.dispatch import group_key, leave_queue, promise_of, release, set_phase, tell_accepted
from router.core.model.actions import (
    Marks,
    Outcome,
    RefundTenant,
    Reject,
    RequestEnded,
    RequestRefused,
    SendCancel,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    attained_by,
)
from router.core.model.session import Group, Move, Phase, Session
from router.core.model.state import Counters, RouterState
from router.errors import Reason, RouterError, Superseded, Unavailable
from scheduling.admission.learnt import TPOT_SCALE, Learnt
from scheduling.request import FinishReason, Path

BY_ITSELF = {FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH}
"""The reasons of choices that nobody cut off."""

# Groups


def end_group(state: RouterState, group: Group) -> None:
    """End a group all of whose choices have ended by themselves."""
    # A choice that ended with the prefill worker's first token is never started on the decode worker.
    detach(state, group, tell_workers=not group.decode_reported)
    # Groups may end in one step: then no choice is open, and still this group is not the last.
    if not group.session.groups and not group.session.open_choices:
        finish(state, group.session)


def detach(state: RouterState, group: Group, *, tell_workers: bool) -> None:
    """End a group: no worker computes it, no report finds it, nothing is held for it."""
    if group.phase in (Phase.ENQUEUEING, Phase.WAITING, Phase.SETTLING):
        leave_queue(state, group)
    move = state.moves.pop(group.key, None)
    if move is not None:
        call_off(state, move)
    if group.phase is Phase.RUNNING:
        for worker in state.fleet.alive((group.prefill_key, group.decode_key)):
            del worker.groups[group.handle]
            if worker.key == group.decode_key:
                worker.release(group)
                worker.preempted.pop(group.handle, None)
            if tell_workers:
                state.actions.append(SendCancel(worker.key, (group.handle,)))
    release(state, group)
    set_phase(state, group, Phase.ENDED)
    del state.groups[group.key]
    state.without_source.pop(group.key, None)
    group.session.groups.remove(group)
    group.dissolve()


def call_off(state: RouterState, move: Move) -> None:
    """Cancel all that is copied or offered for a move; the group stays as it is."""
    parts = tuple(move.parts.values())
    for worker in state.fleet.alive((move.source, move.target)):
        for handle in move.copying:
            worker.copies.pop(handle, None)
        handles = (*sorted(move.copying), *(parts if worker.key == move.source else ()))
        if handles:
            state.actions.append(SendCancel(worker.key, handles))
    move.copying.clear()


# Sessions


def cut_off(state: RouterState, session: Session, reason: FinishReason, error: str = "") -> None:
    """End all of a session that has not ended, in whatever phase it is."""
    session.error = error
    if not session.admitted:
        tell_accepted(state, session)
    for group in list(session.groups):
        detach(state, group, tell_workers=True)
    for choice in session.open_choices:
        choice.finish = reason
        for listener in session.listeners:
            told = TellChoiceFinished(listener, choice.index, reason, len(choice.token_ids))
            state.actions.append(told)
    finish(state, session)


def finish(state: RouterState, session: Session) -> None:
    """End a session whose choices have all ended: tell its calls, learn from it, remember it for a while."""
    assert not session.groups, "a session ends after its groups"
    session.timeline.ended_at = state.now
    _close(state, session, remember=True)
    outcome = outcome_of(session)
    _learn(state.learnt, session, outcome, state.now)
    _count(state.counters, session)
    state.actions.append(RequestEnded(group_key(session, 0), outcome))
    tell_finished(state, session, outcome)


def _close(state: RouterState, session: Session, *, remember: bool) -> None:
    """Take a session from those that run; calls can still attach to a remembered one for a while."""
    name = session.request.tenant, session.request.request_id
    del state.live[name]
    state.awaiting.pop(session.sid, None)
    state.lacking_logprobs.discard(session.sid)
    if remember:
        state.retained[name] = session
        if len(state.retained) > state.config.max_retained:
            _forget_oldest(state)
    else:
        del state.by_sid[session.sid]


def forget_at(state: RouterState) -> float:
    """Return when the oldest remembered session may be forgotten; at least one is remembered."""
    ended_at = next(iter(state.retained.values())).timeline.ended_at
    assert ended_at is not None, "only what has ended is remembered"
    return ended_at + state.config.retention_s


def forget_old(state: RouterState) -> None:
    """Drop sessions whose retention is over."""
    while state.retained and forget_at(state) <= state.now:
        _forget_oldest(state)


def _forget_oldest(state: RouterState) -> None:
    _, oldest = state.retained.popitem(last=False)
    state.by_sid.pop(oldest.sid, None)


def unlisten(state: RouterState, session: Session, listener: int) -> float:
    """Remove a call from those that receive the session's events, and return its grace."""
    del state.by_listener[listener]
    return session.listeners.pop(listener).grace_s


def _unlisten_all(state: RouterState, session: Session) -> None:
    for listener in list(session.listeners):
        unlisten(state, session, listener)


def tell_finished(state: RouterState, session: Session, outcome: Outcome) -> None:
    """Send the last event to the session's calls, if there are any."""
    for listener in session.listeners:
        state.actions.append(TellFinished(listener, outcome))
    _unlisten_all(state, session)


def end_calls(state: RouterState, session: Session, error: RouterError) -> None:
    """End every call of the session with an error."""
    for listener in session.listeners:
        state.actions.append(Reject(listener, error))
    _unlisten_all(state, session)


def supersede(state: RouterState, session: Session, number: int) -> None:
    """End the calls of earlier sessions: a later one takes the request over."""
    end_calls(state, session, Superseded(session.number, number))


def withdraw(state: RouterState, session: Session) -> None:
    """End the groups of a session that was not admitted, and refund its tenant; the session stays."""
    if session.charged_tokens > 0:
        state.actions.append(
            RefundTenant(group_key(session, 0), session.request.tenant, session.charged_tokens)
        )
    session.charged_tokens, session.ahead = 0.0, None
    for group in list(session.groups):
        set_phase(state, group, Phase.ENDED)
        del state.groups[group.key]
        group.dissolve()
    session.groups.clear()


def forget(state: RouterState, session: Session) -> None:
    """Forget a session for which nothing was generated, as if it had never arrived."""
    withdraw(state, session)
    _unlisten_all(state, session)
    session.timeline.ended_at = state.now
    _close(state, session, remember=False)


def abandon(state: RouterState, session: Session, later: int = 0) -> None:
    """Free all of a request and remember nothing: its client goes on without what this router has of it.

    `later` is the session that took the request over, if that is known.
    """
    if session.ended:
        state.retained.pop((session.request.tenant, session.request.request_id), None)
        state.by_sid.pop(session.sid, None)
        return
    for group in list(session.groups):
        detach(state, group, tell_workers=True)
    session.timeline.ended_at = state.now
    supersede(state, session, max(later, session.number + 1))
    _close(state, session, remember=False)


# This router cannot serve a request, and another one may


def no_worker_came(state: RouterState, session: Session) -> None:
    """End a session for which no worker has come here: routers may be connected to different workers.

    It has not failed: an SDK takes that as the last word, and resumes after this error for a limited time.
    """
    error = Unavailable(Reason.NO_WORKER, "no decode worker that could run this request came back in time")
    state.counters.refused += 1
    state.actions.append(RequestRefused(session.request.slo.slo_class, error))
    _break_off(state, session, error)


def _break_off(state: RouterState, session: Session, error: Unavailable) -> None:
    """End a session without a last event: a client that resumes goes on elsewhere, and brings its tokens."""
    end_calls(state, session, error)
    abandon(state, session)


# This router ends


def leave(state: RouterState) -> None:
    """Take nothing new, and tell the calls that can go on elsewhere; all others are served to the end.

    A client that resumes brings the tokens it has, so a session without calls is forgotten at once: its
    workers are free before the next router asks them.
    """
    state.leaving = True
    for session in list(state.live.values()):
        if not session.listeners:
            abandon(state, session)
        for listener, call in session.listeners.items():
            if call.grace_s > 0:
                state.actions.append(TellLeaving(listener))


def stop(state: RouterState, session: Session) -> None:
    """End a session because this router stops."""
    why = "this router is shutting down; resume on another one"
    _break_off(state, session, Unavailable(Reason.ROUTER_LEAVING, why))


# What became of it


def outcome_of(session: Session) -> Outcome:
    """Return what became of an ended session."""
    timeline = session.timeline
    assert timeline.ended_at is not None, "an outcome is of an ended session"
    ended = timeline.ended_at
    output_tokens = sum(len(choice.token_ids) for choice in session.choices)
    return Outcome(
        slo_class=session.request.slo.slo_class,
        promise=promise_of(session.request.slo, session.decision),
        marks=Marks(
            timeline.received_at,
            _or_end(timeline.dispatched_at, ended),
            _or_end(timeline.first_token_at, ended),
            _or_end(timeline.decode_at, ended),
            ended,
        ),
        has_tokens=output_tokens > sum(session.received_tokens),
        prompt_tokens=len(session.request.prompt_token_ids),
        cached_prompt_tokens=session.cached_tokens,
        output_tokens=output_tokens,
        attempts=session.attempts,
        path=session.path,
        tpot_s=session.tpot_s(),
        max_gap_s=session.max_gap_s,
        reasons=tuple(choice.finish for choice in session.choices),
        error=session.error,
    )


def _or_end(at: float | None, ended: float) -> float:
    return ended if at is None else at


def _learn(learnt: Learnt, session: Session, outcome: Outcome, now: float) -> None:
    """Learn the lengths of outputs, the ratio of observed to predicted TPOT, and how a trial ended."""
    for choice in session.choices:
        if choice.finish in BY_ITSELF:
            learnt.lengths[session.request.slo.slo_class].add(len(choice.token_ids))
    predicted, tpot_s = session.predicted, outcome.tpot_s
    if predicted is not None and tpot_s is not None and session.attempts == 1:
        learnt.tpot.add(predicted.batch_size * TPOT_SCALE, tpot_s / predicted.tpot_s, now)
    program, marks = session.request.program, outcome.marks
    if program is not None and outcome.has_tokens and set(outcome.reasons) <= BY_ITSELF:
        learnt.programs.call_ended(
            session.request.tenant,
            program,
            received_at=marks.received_at,
            dispatched_at=marks.dispatched_at,
            first_at=marks.first_token_at,
            now=now,
        )
    is_trial = session.decision is not None and session.decision.is_trial
    if is_trial and outcome.has_tokens and attained_by(outcome).all:
        learnt.trials.succeed()


def _count(counters: Counters, session: Session) -> None:
    reasons = {choice.finish for choice in session.choices}
    if FinishReason.FAILED in reasons:
        counters.failed += 1
    elif FinishReason.CANCELLED in reasons:
        counters.cancelled += 1
    else:
        counters.finished += 1
    counters.handed_over += session.path is Path.DISAGGREGATED
    first_at = session.timeline.first_token_at
    if session.request.slo.ttft_ms is None or session.number > 0:
        return
    if first_at is not None and first_at <= session.ttft_due_at:
        counters.ttft_promises_kept += 1
    elif first_at is not None or FinishReason.CANCELLED not in reasons:
        counters.ttft_promises_broken += 1
