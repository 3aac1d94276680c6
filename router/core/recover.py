"""An attempt failed: the next one goes on from what was delivered, elsewhere if it can, and not for ever."""

from __future__ import annotations

from router.core import finish
from router.core.dispatch import enqueue, new_groups, release_credit, strand
from router.core.model.actions import AttemptFailed, FinalError, GroupMigrated, Reject, TellRetrying
from router.core.model.events import SequenceFailed
from router.core.model.fleet import Worker
from router.core.model.session import (
    MAX_ATTEMPTS,
    MAX_FAILURES,
    MAX_LOST,
    Call,
    Group,
    Phase,
    Session,
)
from router.core.model.state import RouterState
from router.errors import Superseded
from scheduling.placement import Handoff
from scheduling.request import FinishReason

FIRST_REST_S, LONGEST_REST_S = 0.1, 2.0
"""The rest before the attempt after the second failure, and the longest rest before any. A fleet with only
one worker left, which cannot do what is asked of it now, would use up all attempts in a moment.
"""
BEGINS_S, BEGINS_STEPS = 2.0, 4
"""A decode worker that has a group's KV decodes it within this time, or so many of its longest steps."""
MAX_DRIFT = 1e-3
"""The clocks of two hosts differ by less than this share of the time that they measure."""
DOUBT_S = 8.0
"""The rest before another attempt, or the last word, when many failed and workers were lost. They may come
back: a host that swaps, or that is moved, stands still for seconds. And if the request itself crashes
workers, it crashes none during the rest.
"""


def fail_attempt(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Give an attempt up for what a worker did, and start the next one elsewhere if it can, or fail."""
    group.failed_workers |= {worker_key}
    group.avoided |= {worker_key}
    _fail(state, group, worker_key, reason)


def _fail(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Give an attempt up on all its workers and start the next, or fail the request."""
    if group.phase is not Phase.RUNNING:
        return
    group.failures += 1
    group.failed_with = reason
    final = (has_failed_too_often(group) and not group.lost_workers) or group.failures >= MAX_FAILURES
    state.actions.append(AttemptFailed(group.key, group.attempt, worker_key, reason, final))
    if final:
        give_up(state, group)
        return
    state.counters.retried_attempts += 1
    tell_failures(state, group.session)
    _start_again(state, group, _rest_s(group))


def fail_for_good(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Fail a request that would fail on any worker."""
    if group.phase is Phase.RUNNING:
        state.actions.append(AttemptFailed(group.key, group.attempt, worker_key, reason, final=True))
        finish.cut_off(state, group.session, FinishReason.FAILED, FinalError(reason))


def has_failed_too_often(group: Group) -> bool:
    """Return True if the group has as many failures of its own as a request may have."""
    at_workers = group.own_failures - group.failed_elsewhere - len(group.lost_workers)
    return at_workers >= MAX_ATTEMPTS or group.own_failures >= MAX_LOST


def give_up(state: RouterState, group: Group) -> None:
    """Fail a group, and with it all of its request."""
    error = f"{group.failures} attempts failed, the last with: {group.failed_with}"
    finish.cut_off(state, group.session, FinishReason.FAILED, error)


def _start_again(state: RouterState, group: Group, rests_s: float = 0.0) -> None:
    """Take a group off its workers and queue it with what was delivered, `rests_s` seconds from now."""
    # Also the worker that reported the failure is told to cancel: unknown handles are ignored there.
    finish.detach(state, group, tell_workers=True)
    for successor in new_groups(state, group.session, group.open_choices, group):
        if rests_s:
            successor.rests_until = state.now + rests_s
            strand(state, successor)
        else:
            enqueue(state, successor)


def _rest_s(group: Group) -> float:
    """Return 0 after the first failure, then twice as long each time, until it is in doubt what is wrong."""
    if group.lost_workers and group.own_failures >= MAX_ATTEMPTS:
        return DOUBT_S
    return 0.0 if group.failures < 2 else min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (group.failures - 2))


def tell_failures(state: RouterState, session: Session, only: int | None = None) -> None:
    """Send the count of failed attempts and the session, which a client brings when it resumes.

    Send them to all calls, or to the `only` one: any may resume, also one whose work ends with it. The count
    keeps a request from failing all over a fleet. Without the session, a request that was taken back would
    be refused as superseded by itself.
    """
    failures = max((group.own_failures for group in session.groups), default=0)
    for listener in session.listeners if only is None else (only,):
        state.actions.append(TellRetrying(listener, failures, session.number))


def fail_handoff(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Take in that KV did not arrive. The next attempt goes another way (`avoids` in `grant`).

    It is not the request's doing, unless the worker that was to send the KV is lost as well. A worker that
    has left in order took the KV with it: then nothing has failed.
    """
    if group.prefill_key is None or group.decode_key is None:
        start_elsewhere(state, group, worker_key)
        return
    group.failed_handoffs += (Handoff(group.prefill_key, group.decode_key),)
    group.excused_failures += 1
    _fail(state, group, worker_key, reason)


def fail_fenced(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Take in that a worker did not start an attempt for its fence, which says nothing about the request."""
    group.excused_failures += 1
    fail_attempt(state, group, worker_key, reason)


def _count_failed_handoffs(state: RouterState, worker_key: str) -> None:
    """Count the failed handoffs of a lost worker after all: one of these requests may have ended it."""
    for group in state.groups.values():
        times = sum(failed.source == worker_key for failed in group.failed_handoffs)
        if times:
            group.excused_failures -= times
            group.lost_workers += (worker_key,) * times
            group.failed_handoffs = tuple(
                failed for failed in group.failed_handoffs if failed.source != worker_key
            )
            tell_failures(state, group.session)


def on_worker_back(state: RouterState, worker_key: str) -> None:
    """Excuse the failures of a lost worker that is back as it was: only its link had failed."""
    for group in state.groups.values():
        times = group.lost_workers.count(worker_key)
        if times:
            group.excused_failures += times
            group.lost_workers = tuple(key for key in group.lost_workers if key != worker_key)
            tell_failures(state, group.session)


def on_superseded(state: RouterState, group: Group, failure: SequenceFailed) -> None:
    """Take in that a worker knows a later session than the one that this attempt was dispatched under.

    The call that came last receives the request:

    - If this router's session is as late by now, the group starts again.
    - If a call has come here since the attempt was sent, the worker's word may be older than the call. The
      group starts again in the same session, so that the worker speaks anew.
    - If a client has called Generate here since the request was resumed at another router, its call takes the
      request back: it is served in a session above the other one. Earlier calls end.
    - Otherwise all calls that are left here are earlier ones, and end.

    Each router decides this alone. Two routers cannot take a request from each other in turn: when this one
    takes it, the other one learns how long ago the call came here, and finds that its own calls are older.
    """
    session = group.session
    is_as_late = group.sent_session < session.number >= failure.session
    has_new_call = session.attached_at > group.sent_at
    if is_as_late or has_new_call or _take_back(state, session, failure):
        _start_again(state, group)
    else:
        finish.abandon(state, session, failure.session)


def _take_back(state: RouterState, session: Session, failure: SequenceFailed) -> bool:
    """Continue above the later session with the calls that came after it; return False if there are none."""
    now, age_s = state.now, failure.session_age_seconds
    older = [listener for listener, call in session.listeners.items() if not came_after(call, now, age_s)]
    if len(older) == len(session.listeners):
        return False
    for listener in older:
        state.actions.append(Reject(listener, Superseded(session.number, failure.session)))
        finish.unlisten(state, session, listener)
    session.number = failure.session + 1
    tell_failures(state, session)
    return True


def came_after(call: Call, now: float, age_s: float) -> bool:
    """Return True if a Generate came after another router's call, which came at least `age_s` seconds ago.

    A Resume continues an older call, whose client may have gone on elsewhere since.
    """
    return call.number == 0 and (now - call.attached_at) * (1 + MAX_DRIFT) < age_s


def start_elsewhere(state: RouterState, group: Group, worker_key: str) -> None:
    """Take a group off its workers and queue it with what was delivered; no attempt has failed."""
    state.actions.append(GroupMigrated(group.key, worker_key))
    group.avoided |= {worker_key}
    _start_again(state, group)


def on_released(state: RouterState, worker: Worker, handle: int) -> None:
    """Take in that a worker holds a group no more, which has not ended here.

    That is in order at a prefill worker once the group is handed over, and at a decode worker if all choices
    ended with the first tokens, which the prefill worker reports. If that worker has left, its report is lost
    and the group starts again. In any other case nobody would ever report the end.
    """
    group = worker.groups.get(handle)
    if group is None or worker.key != group.decode_key:
        return
    if group.decode_reported or group.prefill_key == worker.key:
        fail_attempt(state, group, worker.key, "protocol error: the worker dropped it without its end")
    elif group.prefill_key is None:
        start_elsewhere(state, group, worker.key)
    else:
        group.is_released = True


def on_worker_lost(state: RouterState, worker_key: str, reason: str) -> None:
    """Fail all that was dispatched over a lost stream, except what has been handed over already.

    A worker that was draining left when it had nothing any more, or no more time: neither is a failure, and
    the worker that fetches from it reports whether the fetch was done, or `replace_sources` finds that it has
    not begun. Its last reports may be lost all the same. A group that needs more than the decode worker will
    report starts again.
    """
    worker = state.fleet.lose(worker_key)
    if worker is None:
        return
    if not worker.draining:
        _count_failed_handoffs(state, worker_key)
    for group in list(worker.groups.values()):
        if worker.draining and (group.decode_key == worker.key or _lacks_a_report(group)):
            start_elsewhere(state, group, worker.key)
        elif worker.draining or _was_handed_over(group, worker):
            release_credit(state, group)
            group.prefill_key = None  # should it come back under this key, it knows nothing of the group
            if not group.decode_reported:
                group.source_left_at = state.now
                state.without_source[group.key] = group
        else:
            group.lost_workers += (worker_key,)
            fail_attempt(state, group, worker_key, f"worker lost: {reason}")


def replace_sources(state: RouterState) -> None:
    """Start groups again whose source has left, and whose decode worker should have begun to decode by now.

    It cannot have the KV, and does not know that nobody will send it: it waits for memory, and asks for the
    KV once it has some. Nothing has failed.
    """
    for group in list(state.without_source.values()):
        worker = state.fleet.workers.get(group.decode_key or "")
        if worker is None or group.decode_reported or group.source_left_at is None:
            del state.without_source[group.key]
        elif state.now - group.source_left_at > _longest_begin_s(worker):
            start_elsewhere(state, group, worker.key)


def _longest_begin_s(worker: Worker) -> float:
    """Return how long a decode worker may need to report a token of a group whose KV it has."""
    return max(BEGINS_S, BEGINS_STEPS * worker.longest_step_s)


def _lacks_a_report(group: Group) -> bool:
    """Return True if only the prefill worker could report what a group still lacks."""
    return group.is_released or group.session.lacks_prompt_logprobs


def _was_handed_over(group: Group, lost: Worker) -> bool:
    return lost.key != group.decode_key and group.decode_reported
