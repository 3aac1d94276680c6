"""The store goes away and comes back, with what it held or without.

What was to be returned while it was away is kept, and returned once it is back, unless a later attempt holds
it again by then. A store that comes back empty is told first what is held here.
"""

from __future__ import annotations

from router.core.actions import Dequeue, ReleaseCredit, ReleaseLease, StoreChanged, TakeHolds
from router.core.admission.admit import on_charged, on_enqueue_failed
from router.core.events import StoreCall, StoreFailed
from router.core.queue.grants import on_grants_answered
from router.core.queue.queue import enqueue, strand
from router.core.session.session import IN_QUEUE, Group, Phase
from router.core.state import RouterState
from state.records import Hold


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
        case StoreCall.TAKE_HOLDS:
            state.must_take_holds = True
        case _:
            _fail_call_of_group(state, event)


def _fail_call_of_group(state: RouterState, event: StoreFailed) -> None:
    group = state.groups.get(event.key)
    if group is None:
        if event.call in (StoreCall.ENQUEUE, StoreCall.DEQUEUE):
            state.to_dequeue.add(event.key)
    elif event.call is StoreCall.ENQUEUE and group.phase in IN_QUEUE:
        on_enqueue_failed(state, group, event.reason)
    elif event.call is StoreCall.SETTLE and group.phase is Phase.SETTLING:
        strand(state, group)
        group.prefill_key = group.decode_key = None


def on_store_back(state: RouterState) -> None:
    """Take in that the store is back: return what could not be returned while it was away."""
    state.store_reachable = True
    state.actions.append(StoreChanged(reachable=True, reason=""))
    if state.must_take_holds:
        state.must_take_holds = False
        _take_holds(state)
    state.actions += (Dequeue(key) for key in sorted(state.to_dequeue - state.groups.keys()))
    state.to_dequeue.clear()
    releases, state.to_release = state.to_release, {}
    state.actions += (
        release
        for release in releases
        if not _is_held(state.groups.get(release.request_key), release.worker_key)
    )


def on_store_forgot(state: RouterState) -> None:
    """Tell the store what is held, before anybody is granted it; then all that waits asks for a place."""
    _take_holds(state)
    for group in list(state.waiting):
        enqueue(state, group)


def _take_holds(state: RouterState) -> None:
    groups = state.groups.values()
    holds = TakeHolds(
        tuple(Hold(group.key, group.credit_on, group.work_tokens) for group in groups if group.credit_on),
        tuple(Hold(group.key, group.lease_on, group.blocks) for group in groups if group.lease_on),
    )
    if holds.credits or holds.leases:
        state.actions.append(holds)


def _is_held(group: Group | None, worker_key: str) -> bool:
    """Return True if a later attempt has, or is about to have, what an earlier one could not return."""
    if group is None or group.phase not in (Phase.SETTLING, Phase.RUNNING):
        return False
    is_settling = group.phase is Phase.SETTLING and worker_key == group.held_key
    return is_settling or worker_key in (group.prefill_key, group.decode_key)
