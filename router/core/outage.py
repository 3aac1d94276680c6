"""The store goes away and comes back, with what it held or without.

What was to be returned while it was away is kept, and returned once it is back. So is what a failed call may
have left there: nobody knows whether it was executed, or will be. The group goes on under another name, so
that neither touches what it holds then. A store that comes back is told first what is held here.

Meanwhile groups are placed by what this router alone knows. Each router then sees only its own queue. What
several of them promise of the same workers is not added up, and no tenant is held to its share. Workers keep
the last word on memory, so the worst is another attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from router.core.admit import admit, on_charged, on_queue_full, turn_away
from router.core.dispatch import dispatch, enqueue, strand
from router.core.grant import avoids, decoder_for, on_grants_answered, sources
from router.core.model.actions import Dequeue, ReleaseCredit, ReleaseLease, StoreChanged, TakeHolds
from router.core.model.events import PREFILL, HoldsLost, StoreCall, StoreFailed
from router.core.model.session import IN_QUEUE, Group, Phase
from router.core.model.state import RouterState
from router.errors import Reason, Unavailable
from runtime.state.records import Hold
from scheduling.admission.backlog import due_at
from scheduling.prediction import QueueAhead


def on_store_failed(state: RouterState, event: StoreFailed) -> None:
    """Take in that a call of the store failed: the store is away."""
    if state.store_reachable:
        state.store_reachable = False
        state.actions.append(StoreChanged(reachable=False, reason=event.reason))
    match event.call:
        case StoreCall.GRANT:
            on_grants_answered(state, event.key)
        case StoreCall.CHARGE:
            on_charged(state, event.key, None)
        case StoreCall.RELEASE_CREDIT:
            state.to_release[ReleaseCredit(event.key, event.worker_key)] = None
        case StoreCall.RELEASE_LEASE:
            state.to_release[ReleaseLease(event.key, event.worker_key)] = None
        case _:
            _fail_call_of_group(state, event)


def _fail_call_of_group(state: RouterState, event: StoreFailed) -> None:
    group = state.groups.get(event.key)
    match event.call:
        case StoreCall.ENQUEUE if group is None or group.phase in IN_QUEUE:
            _dequeue_later(state, event)
            if group is not None:
                _on_enqueue_failed(state, group, event.reason)
        case StoreCall.DEQUEUE if group is None:
            _dequeue_later(state, event)
        case StoreCall.SETTLE:
            _dequeue_later(state, event)
            if group is not None and group.phase is Phase.SETTLING:
                strand(state, group)
                group.prefill_key = group.decode_key = None


def _dequeue_later(state: RouterState, event: StoreFailed) -> None:
    """Give a place back once the store responds, and then what a settle may hold for it.

    A settle that failed may be executed as long as the place is there. So whenever the place could not be
    given back, what was released meanwhile is released again.
    """
    known = state.to_dequeue
    if event.key in known or len(known) < state.config.queue_capacity:
        dequeue = Dequeue(event.key, event.worker_key, event.decode_keys)
        known[event.key] = dequeue if event.worker_key else known.get(event.key, dequeue)
    if event.worker_key:
        state.to_release[ReleaseCredit(event.key, event.worker_key)] = None
    for worker_key in event.decode_keys:
        state.to_release[ReleaseLease(event.key, worker_key)] = None


def on_store_back(state: RouterState) -> None:
    """Take in that the store is back: return what could not be returned while it was away.

    What is held may have expired there, if it was away from this router only.
    """
    state.store_reachable = True
    state.actions.append(StoreChanged(reachable=True, reason=""))
    _take_holds(state)
    state.actions += (state.to_dequeue[key] for key in sorted(state.to_dequeue))
    state.to_dequeue.clear()
    state.actions += state.to_release
    state.to_release.clear()


def on_store_forgot(state: RouterState) -> None:
    """Tell the store what is held, before anybody is granted it; then all that waits asks for a place."""
    _take_holds(state)
    for group in list(state.waiting):
        enqueue(state, group)


def on_holds_lost(state: RouterState, event: HoldsLost) -> None:
    """Enter what the store did not have to be renewed, as far as it is still held.

    It expired while this router stood still, or while the store could not hear it.
    """
    _enter(
        state,
        [group for group, worker_key in _found(state, event.credits) if group.credit_on == worker_key],
        [group for group, worker_key in _found(state, event.leases) if group.lease_on == worker_key],
    )


def _found(state: RouterState, holds: Iterable[tuple[str, str]]) -> Iterator[tuple[Group, str]]:
    return ((state.groups[key], worker_key) for key, worker_key in holds if key in state.groups)


def _take_holds(state: RouterState) -> None:
    """Enter all that is held, in a store that may not have it any more."""
    _enter(state, state.groups.values(), state.groups.values())


def _enter(state: RouterState, crediting: Iterable[Group], leasing: Iterable[Group]) -> None:
    holds = TakeHolds(
        tuple(Hold(group.key, group.credit_on, group.work_tokens) for group in crediting if group.credit_on),
        tuple(
            Hold(group.key, group.lease_on, group.blocks, group.num_seqs, group.seat_share)
            for group in leasing
            if group.lease_on
        ),
    )
    if holds.credits or holds.leases:
        state.actions.append(holds)


# Service without the store

PATIENCE_S = 3.0
"""A Redis that was restarted serves again within this time. What was accepted waits no longer for it."""


def _on_enqueue_failed(state: RouterState, group: Group, reason: str) -> None:
    """Serve a newcomer by what this router knows, if it may; otherwise turn it away.

    A group that was admitted survives in this router.
    """
    if group.session.admitted:
        strand(state, group)
    elif not state.config.serves_without_store:
        why = f"Redis, which holds the fleet's queue, does not answer: {reason}"
        turn_away(state, group.session, Unavailable(Reason.REDIS_AWAY, why))
    elif len(state.stranded) >= state.config.queue_capacity:
        on_queue_full(state, group.key)
    elif admit(state, group, _work_ahead(state, group), 0.0):
        strand(state, group)
        serve_stranded(state)


def _work_ahead(state: RouterState, group: Group) -> QueueAhead:
    """Return the work that waits in this router ahead of a newcomer; groups that rest do not count."""
    own = _turn(group)
    ready = [
        other for other in state.stranded.values() if other is not group and other.rests_until <= state.now
    ]
    earlier = [other.work_tokens for other in ready if _turn(other) <= own]
    return QueueAhead(sum(earlier), len(earlier))


def serve_stranded(state: RouterState) -> None:
    """Dispatch stranded groups by class, then by due time.

    Groups that were sent to workers before go at once, since waiting for the store would stop their streams.
    Others go when a worker takes more prompts: at once if `serves_without_store` is set, else after a while,
    since they were accepted and the store may be away for long.
    """
    for group in sorted(state.stranded.values(), key=_turn):
        if state.now < group.rests_until:
            continue
        was_sent = group.attempt > 0 or group.session.number > 0
        if was_sent or (_waits_no_longer(state, group) and _has_free_worker(state)):
            _dispatch_unleased(state, group)


def _waits_no_longer(state: RouterState, group: Group) -> bool:
    """Return True if a group that no worker has seen may go without the store's leave."""
    since = group.stranded_at
    return state.config.serves_without_store or (since is not None and state.now - since >= PATIENCE_S)


def _turn(group: Group) -> tuple[int, float, str]:
    session = group.session
    return int(session.request.slo.slo_class), due_at(session.aim, session.timeline.received_at), group.key


def _has_free_worker(state: RouterState) -> bool:
    """Return True if a worker takes more prompts: requests are bound late, as with the store."""
    return any(
        worker.bound_tokens < state.capacity.prompt_queue(worker, state.now).limit
        for worker in state.fleet.computing
    )


def _dispatch_unleased(state: RouterState, group: Group) -> None:
    """Dispatch a group without a lease, to the first worker for which there is a decode worker with room."""
    computing = sorted(
        sources(state, group),
        key=lambda worker: (avoids(group, worker), worker.bound_tokens, worker.key),
    )
    if computing and computing[0].facts.role == PREFILL:
        computing = computing[:1]
    for prefill in computing:
        decode_key = decoder_for(state, group, prefill)
        if decode_key is not None:
            group.prefill_key, group.decode_key = prefill.key, decode_key
            dispatch(state, group)
            return
