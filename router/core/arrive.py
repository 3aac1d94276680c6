"""A call comes in: it attaches to what runs, goes on from what was received, or asks to be admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.core import deliver, finish, recover
from router.core.admit import check_worth_waiting, is_over, no_worker, turn_away
from router.core.dispatch import enqueue, most_blocks, new_groups, strand, tell_accepted
from router.core.grant import offer_at_once
from router.core.judge import check_slo, goal
from router.core.model.actions import Reject, RequestRefused, SetTimer
from router.core.model.events import Arrived, Timer, TimerKind
from router.core.model.session import MAX_CALLS, MAX_LOST, Call, Choice, Group, Session, Timeline
from router.core.model.state import RouterState
from router.errors import (
    DeadlineExpired,
    DuplicateRequest,
    Reason,
    RouterError,
    Superseded,
    Unavailable,
    ValidationError,
)
from router.request import Request
from scheduling.prediction import RequestCost
from scheduling.request import FinishReason


def on_arrived(state: RouterState, event: Arrived) -> None:
    """Take a call in: every listener gets `Accepted` or `Reject` sooner or later."""
    request = event.request
    try:
        known = find(state, request.tenant, request.request_id)
        if known is not None and not _takes_over(state, known, request):
            _attach(state, known, event.listener, request)
        else:
            _open(state, event)
    except RouterError as error:
        # Its traceback knows the frames above, which hold the action that holds it: a cycle for each refusal.
        error.__traceback__ = None
        state.counters.refused += 1
        state.actions.append(RequestRefused(request.slo.slo_class, error))
        state.actions.append(Reject(event.listener, error))


def find(state: RouterState, tenant: str, request_id: str) -> Session | None:
    """Return the session of this name, running or remembered."""
    name = tenant, request_id
    return state.live.get(name) or state.retained.get(name)


def _listen(state: RouterState, session: Session, listener: int, request: Request) -> None:
    """Add a call to those that receive the session's events."""
    session.listeners[listener] = Call(request.session, request.received_at, request.resume_grace_s)
    session.attached_at = request.received_at
    state.by_listener[listener] = session


# A request that is known here


def _takes_over(state: RouterState, known: Session, request: Request) -> bool:
    """Return True if the call starts over from its received tokens; raise if the session is not for it."""
    first = known.request
    same_seed = not request.seed_given or request.sampling.seed == first.sampling.seed
    if request.digest != first.digest or not same_seed:
        raise DuplicateRequest(request.request_id)
    # Whoever uses an id again counts sessions from 0. A request that has ended, or that nobody hears, has no
    # other caller.
    has_caller = bool(known.listeners) and not known.ended
    if request.session < known.number and has_caller:
        raise Superseded(request.session, known.number)
    received = {part.choice: part.token_ids for part in request.received}
    knows = all(_is_prefix(known, choice.index, received.get(choice.index, ())) for choice in known.choices)
    num_received = request.received_prompt_logprobs
    knows = knows and first.received_prompt_logprobs <= num_received < known.next_prompt_index
    if knows and not known.given_up:
        return False
    if request.session == known.number > 0 and has_caller:
        raise Superseded(request.session, known.number)
    # Another router went on from tokens that this one never saw, and what runs here leads elsewhere. Or the
    # client was given up here while another router had it, and nobody wanted it to end.
    finish.abandon(state, known)
    return True


def _is_prefix(known: Session, choice: int, token_ids: tuple[int, ...]) -> bool:
    held = known.choices[choice]
    return (
        known.received_tokens[choice] <= len(token_ids) <= len(held.token_ids)
        and tuple(held.token_ids[: len(token_ids)]) == token_ids
    )


def _attach(state: RouterState, session: Session, listener: int, request: Request) -> None:
    """Attach a call: it receives everything it lacks; calls of earlier sessions end."""
    if request.session > session.number:
        finish.supersede(state, session, request.session)
    elif len(session.listeners) >= MAX_CALLS:
        oldest = next(iter(session.listeners))
        state.actions.append(Reject(oldest, Superseded(session.number, session.number)))
        finish.unlisten(state, session, oldest)
    session.number = max(session.number, request.session)
    _listen(state, session, listener, request)
    if session.admitted:
        tell_accepted(state, session, listener)
        received = {part.choice: len(part.token_ids) for part in request.received}
        deliver.replay_prompt_logprobs(state, session, listener, request.received_prompt_logprobs)
        deliver.replay(state, session, listener, received)
        session.failed_elsewhere = max(session.failed_elsewhere, request.failed_attempts)
        for group in session.groups:
            _count_failures(group, request.failed_attempts)
        is_later = session.number > request.session and not session.ended
        if is_later or any(group.failures for group in session.groups):
            recover.tell_failures(state, session, listener)
    if session.ended:
        finish.tell_finished(state, session, finish.outcome_of(session))


# A request that is new here


def _open(state: RouterState, event: Arrived) -> None:
    if state.leaving:
        raise Unavailable(
            Reason.ROUTER_LEAVING, "this router is shutting down; another one takes the request"
        )
    if state.config.policy.takes_at_risk:
        event = _at_risk(event)
    request, serves = event.request, state.fleet.serves
    session = _session(event, next(state.sids))
    if session.number == 0:
        session.goal = session.aim = goal(state, request)
    _check_deadline(request, state.now)
    if serves:
        _check_fits(state, session)
    else:
        check_worth_waiting(state, session)
    name = request.tenant, request.request_id
    state.retained.pop(name, None)
    state.live[name] = state.by_sid[session.sid] = session
    if request.sampling.prompt_logprobs is not None and session.lacks_prompt_logprobs:
        state.lacking_logprobs.add(session.sid)
    _listen(state, session, event.listener, request)
    _set_deadline(state, session)
    if session.number > 0:
        # A client that resumes was promised something already, and has waited once.
        session.admitted = True
        tell_accepted(state, session)
        deliver.tell_ended_choices(state, session, event.listener)
    open_choices = [choice for choice in session.choices if not choice.finish]
    if not open_choices:
        finish.finish(state, session)
    elif serves:
        _enqueue(state, session, open_choices)
    else:
        state.awaiting[session.sid] = session


def _at_risk(event: Arrived) -> Arrived:
    slo = replace(event.request.slo, allow_at_risk=True)
    return replace(event, request=replace(event.request, slo=slo))


def _session(event: Arrived, sid: int) -> Session:
    request = event.request
    choices = [Choice(index) for index in range(request.sampling.n)]
    for part in request.received:
        choice = choices[part.choice]
        choice.extend(part.token_ids)
        choice.finish, choice.matched = part.finish, part.matched
    return Session(
        sid=sid,
        request=request,
        number=request.session,
        goal=request.slo,
        aim=request.slo,
        prefix_hits=event.hits,
        timeline=Timeline(request.received_at),
        choices=choices,
        received_tokens=tuple(len(choice.token_ids) for choice in choices),
        failed_elsewhere=request.failed_attempts,
    )


def _check_deadline(request: Request, now: float) -> None:
    deadline_ms = request.slo.deadline_ms
    if deadline_ms is not None and request.received_at + deadline_ms / 1000 <= now:
        raise DeadlineExpired(deadline_ms)


def _set_deadline(state: RouterState, session: Session) -> None:
    if session.request.slo.deadline_ms is not None:
        at = session.timeline.received_at + session.request.slo.deadline_ms / 1000
        state.actions.append(SetTimer(Timer(TimerKind.DEADLINE, session.sid), at))


def _check_fits(state: RouterState, session: Session) -> None:
    """Raise RouterError if no worker could hold the session, or serve it as it asks."""
    request = session.request
    blocks = most_blocks(session, len(session.choices), state.fleet.block_size)
    largest = state.fleet.largest_pool_with(request.adapter)
    if request.adapter and not largest:
        if session.number > 0:
            return  # its worker may be about to join this router, too
        raise Unavailable(Reason.NO_WORKER, "no worker with this request's adapter is connected")
    if blocks > largest:
        raise ValidationError(
            "stop.max_tokens",
            request.stop.max_tokens,
            f"less: with this prompt and n = {request.sampling.n} it could grow to {blocks} KV blocks, and "
            f"the largest decode worker has {largest}",
            Reason.EXCEEDS_MEMORY,
        )
    if session.number == 0:
        cost = RequestCost(len(request.prompt_token_ids), 0, 0, len(session.choices))
        check_slo(state, cost, request.slo, session.prefix_hits)


def _enqueue(state: RouterState, session: Session, choices: Sequence[Choice]) -> None:
    has_workers = state.fleet.largest_pool_with(session.request.adapter) > 0
    for group in new_groups(state, session, choices):
        if session.failed_elsewhere:
            _count_failures(group, session.failed_elsewhere)
        if has_workers:
            enqueue(state, group, offer_at_once(state, group))
        else:
            strand(state, group)


def _count_failures(group: Group, failed_attempts: int) -> None:
    """Count what failed elsewhere, but leave one attempt: a report from outside ends nothing by itself."""
    more = max(0, min(failed_attempts, MAX_LOST - 1) - group.own_failures)
    group.failures += more
    group.failed_elsewhere += more


def take_up_awaiting(state: RouterState) -> None:
    """Admit the calls that wait for a decode worker if there is one, and refuse those whose time is over."""
    for session in list(state.awaiting.values()):
        try:
            if state.fleet.serves:
                del state.awaiting[session.sid]
                _check_fits(state, session)
                _enqueue(state, session, session.open_choices)
            elif is_over(state, session):
                raise no_worker()
        except RouterError as error:
            error.__traceback__ = None  # as above
            turn_away(state, session, error)


# Clients that end or leave


def on_cancel_asked(state: RouterState, tenant: str, request_id: str) -> None:
    """End a request at once, in whatever phase it is; it stays ended."""
    session = find(state, tenant, request_id)
    if session is not None:
        session.given_up = False
        if not session.ended:
            finish.cut_off(state, session, FinishReason.CANCELLED)


def on_client_gone(state: RouterState, listener: int) -> None:
    """Remove a call that broke; if it was the last, its session goes on for the call's grace, or ends."""
    session = state.by_listener.get(listener)
    if session is None:
        return
    grace_s = finish.unlisten(state, session, listener)
    if session.ended or session.listeners:
        return
    if state.leaving:
        finish.abandon(state, session)
    elif grace_s > 0:
        session.left_by = listener
        timer = Timer(TimerKind.GRACE, session.sid, listener)
        state.actions.append(SetTimer(timer, state.now + grace_s))
    else:
        _give_up(state, session)


def on_session_timer(state: RouterState, timer: Timer) -> None:
    """End a session whose deadline has passed, or that no client came back for."""
    session = state.by_sid.get(timer.sid)
    if session is None or session.ended:
        return
    if timer.kind is TimerKind.DEADLINE:
        finish.cut_off(state, session, FinishReason.DEADLINE)
    elif not session.listeners and session.left_by == timer.listener:
        _give_up(state, session)


def _give_up(state: RouterState, session: Session) -> None:
    session.given_up = True
    finish.cut_off(state, session, FinishReason.CANCELLED)
