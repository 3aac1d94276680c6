"""An attempt failed: the next one goes on from what was delivered, elsewhere if it can, and not for ever."""

from __future__ import annotations

from router.core.actions import AttemptFailed, GroupMigrated, TellRetrying
from router.core.capacity.fleet import Worker
from router.core.queue.queueing import enqueue, new_groups, release_credit, strand
from router.core.session import ending
from router.core.session.session import MAX_ATTEMPTS, MAX_FAILURES, MAX_LOST, Group, Phase, Session
from router.core.state import RouterState
from scheduling.request import FinishReason

FIRST_REST_S, LONGEST_REST_S = 0.1, 2.0
"""Before the attempt after the second failure, and the longest before any: a fleet that has only one worker
left, which cannot do what is asked of it just now, would use up all attempts in a moment.
"""
DOUBT_S = 8.0
"""Before another attempt, or the last word, where so many failed and workers were lost: they may be back, as
a host that swaps, or that is moved, stands still for seconds. And a request that ends its workers, if it is
that, ends none meanwhile.
"""


def fail_attempt(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """Give an attempt up on all its workers and start the next, or fail the request."""
    if group.phase is not Phase.RUNNING:
        return
    group.failures += 1
    group.failed_with = reason
    final = (is_too_much(group) and not group.lost_with) or group.failures >= MAX_FAILURES
    state.do(AttemptFailed(group.key, group.attempt, worker_key, reason, final))
    if final:
        give_up(state, group)
        return
    state.counters.retried_attempts += 1
    tell_failures(state, group.session)
    group.avoided |= {worker_key}
    _start_again(state, group, _rest_s(group))


def is_too_much(group: Group) -> bool:
    """As many failures are held against it as a request may have."""
    at_workers = group.held_against - group.brought - len(group.lost_with)
    return at_workers >= MAX_ATTEMPTS or group.held_against >= MAX_LOST


def give_up(state: RouterState, group: Group) -> None:
    """It fails, and with it all of its request."""
    error = f"{group.failures} attempts failed, the last with: {group.failed_with}"
    ending.cut_off(state, group.session, FinishReason.FAILED, error)


def _start_again(state: RouterState, group: Group, rests_s: float = 0.0) -> None:
    """Off its workers and into the queue, with what was delivered; at once, or after a rest."""
    # The command is withdrawn even from whom reported a failure: unknown handles are ignored there.
    ending.detach(state, group, tell_workers=True)
    open_choices = [choice for choice in group.choices if choice.open]
    for successor in new_groups(state, group.session, open_choices, group):
        if rests_s:
            successor.rests_until = state.now + rests_s
            strand(state, successor)
        else:
            enqueue(state, successor)


def _rest_s(group: Group) -> float:
    """None after the first failure, then twice as long each time, until it is in doubt what is wrong."""
    if group.lost_with and group.held_against >= MAX_ATTEMPTS:
        return DOUBT_S
    return 0.0 if group.failures < 2 else min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (group.failures - 2))


def tell_failures(state: RouterState, session: Session, only: int | None = None) -> None:
    """Send the count of failed attempts, which a client brings when it resumes on another router.

    Send it to all calls that may resume, or to the `only` one. It keeps a request from failing all over a
    fleet.
    """
    failures = max((group.held_against for group in session.groups), default=0)
    for listener, grace_s in session.listeners.items():
        if grace_s > 0 and only in (None, listener):
            state.do(TellRetrying(listener, failures))


def fail_handoff(state: RouterState, group: Group, worker_key: str, reason: str) -> None:
    """KV did not come: not the request's doing, unless the worker that was to send it is lost as well.

    One that has left in order took the KV with it: then nothing has failed.
    """
    if group.prefill_key is None:
        start_elsewhere(state, group, worker_key)
        return
    group.handed_by += (group.prefill_key,)
    group.pardoned += 1
    fail_attempt(state, group, worker_key, reason)


def _take_back_pardons(state: RouterState, worker_key: str) -> None:
    """A worker is lost whose handoffs failed just before: it may have died of one of these requests."""
    for group in state.groups.values():
        times = group.handed_by.count(worker_key)
        if times:
            group.pardoned -= times
            group.lost_with += (worker_key,) * times
            group.handed_by = tuple(one for one in group.handed_by if one != worker_key)
            tell_failures(state, group.session)


def on_worker_back(state: RouterState, worker_key: str) -> None:
    """A worker that was lost is here again as it was: what failed with its link ended no process."""
    for group in state.groups.values():
        times = group.lost_with.count(worker_key)
        if times:
            group.pardoned += times
            group.lost_with = tuple(one for one in group.lost_with if one != worker_key)
            tell_failures(state, group.session)


def on_superseded(state: RouterState, group: Group) -> None:
    """A worker knows a later session than the one that this attempt was dispatched under.

    It has come by way of another router: whoever still listens here is told so. Or the client has come back
    since, with a session that is later still, and is served on.
    """
    if group.session.number > group.sent_as:
        _start_again(state, group)
    else:
        ending.abandon(state, group.session)


def start_elsewhere(state: RouterState, group: Group, worker_key: str) -> None:
    """Take a group off its workers and queue it with what was delivered; no attempt has failed."""
    state.counters.migrated += 1
    state.do(GroupMigrated(group.key, worker_key))
    group.avoided |= {worker_key}
    _start_again(state, group)


def on_worker_lost(state: RouterState, worker_key: str, reason: str) -> None:
    """Everything dispatched over its stream is over, except what has been handed over already.

    One that was draining left when it had nothing any more, or no more time: neither is a failure, and who
    fetches from it knows best whether the fetch was done.
    """
    worker = state.fleet.lose(worker_key)
    if worker is None:
        return
    if not worker.draining:
        _take_back_pardons(state, worker_key)
    for group in list(worker.groups.values()):
        if worker.draining and group.decode_key == worker.key:
            start_elsewhere(state, group, worker.key)
        elif worker.draining or _was_handed_over(group, worker):
            release_credit(state, group)
            group.prefill_key = None  # should it come back under this key, it knows nothing of the group
        else:
            group.lost_with += (worker_key,)
            fail_attempt(state, group, worker_key, f"worker lost: {reason}")


def _was_handed_over(group: Group, lost: Worker) -> bool:
    return lost.key != group.decode_key and group.decode_reported
