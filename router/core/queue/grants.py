"""Offers free capacity to the queue, takes the grants that come of it, and turns each into a block lease.

offer_capacity  a worker's free capacity is offered to the head of the queue
on_granted      a group has a prompt credit: choose its decode worker, and ask for a lease there
on_settled      the lease is made: the group is dispatched
"""

from __future__ import annotations

from router.core.actions import AskGrants, ReleaseCredit, ReleaseLease, Settle
from router.core.capacity.worker_facts import DECODE
from router.core.dispatch.choice import UNLIMITED
from router.core.dispatch.dispatch import dispatch
from router.core.events import Granted, SettleAnswered
from router.core.queue.queue import enqueue, give_back, strand
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.placement import Placement
from state.records import DecodeRoom, PrefillRoom, Settled


def offer_capacity(state: RouterState) -> None:
    """Offer workers' free capacity to the head of the queue, as far as groups of this router wait."""
    num_waiting = len(state.waiting)
    if num_waiting == 0:
        return
    if state.config.policy.binds_at_arrival:
        _bind(state)
        return
    free = state.capacity.free_workers(state.now)
    if not free:
        return
    head, most = state.waiting.head, -(-num_waiting // len(free))
    assert head is not None, "a group waits"
    if state.fleet.placement is Placement.CONDITIONAL:
        free = state.choice.best_paths(head, free, num_waiting, state.now)
        # One grant each, as long as that leaves nobody waiting for the answer to the next call.
        most = -(-num_waiting // len(state.fleet.computing))
    elif len(free) > num_waiting:
        free = state.choice.soonest(head, free, num_waiting, state.now)
    pace_ms = state.waiting.tightest_pace_ms
    shared: tuple[DecodeRoom, ...] | None = None
    for worker in free:
        worker.asking = True
        if worker.facts.role == DECODE:
            rooms = state.choice.rooms(worker, pace_ms, state.now)
        else:
            rooms = shared = shared or state.choice.rooms(worker, pace_ms, state.now)
        limit = state.capacity.prompt_queue(worker, state.now).limit
        state.actions.append(AskGrants(PrefillRoom(worker.key, limit, most), rooms))


def _bind(state: RouterState) -> None:
    """Offer the worker with the least work, which queues what it gets: it has no limit."""
    worker = state.choice.least_work()
    if worker is not None:
        worker.asking = True
        rooms = state.choice.rooms(worker, None, state.now)
        state.actions.append(AskGrants(PrefillRoom(worker.key, UNLIMITED), rooms))


def on_granted(state: RouterState, grant: Granted) -> None:
    """Take a grant, if its group still waits for one."""
    group = state.groups.get(grant.request_key)
    if group is None:
        give_back(state, grant)  # it ended while the grant was on its way
    elif group.phase is Phase.ENQUEUEING:
        group.early_grant = grant
    elif group.phase is Phase.WAITING:
        take_grant(state, group, grant)


def take_grant(state: RouterState, group: Group, grant: Granted) -> None:
    """Turn a grant into a lease, or give it back.

    The lease is asked of the best decode worker; if that one has no room for it, of the decode worker where
    the grant holds room.
    """
    worker = state.fleet.workers.get(grant.worker_key)
    found = None if worker is None or worker.draining else state.choice.decoder(group, worker, state.now)
    if found is None:
        give_back(state, grant)
        strand(state, group)
        return
    group.prefill_key, group.decode_key = grant.worker_key, found.worker_key
    group.held_key = grant.decode_key
    state.move(group, Phase.SETTLING)
    # Each once, in this order.
    keys = dict.fromkeys((found.worker_key, grant.decode_key))
    rooms = tuple(_room(state, key, group.session.aim.pace_ms) for key in keys)
    state.actions.append(Settle(group.key, grant.worker_key, rooms))


def _room(state: RouterState, worker_key: str, pace_ms: int | None) -> DecodeRoom:
    """Return a decode worker's capacity; none where it takes nothing new."""
    worker = state.fleet.workers.get(worker_key)
    if worker is None or worker.draining:
        return DecodeRoom(worker_key, 0, 0)
    return state.choice.room(worker, pace_ms, state.now)


def on_grants_answered(state: RouterState, worker_key: str) -> None:
    """Take in that a grant call for a worker is over."""
    worker = state.fleet.workers.get(worker_key)
    if worker is not None:
        worker.asking = False


def on_settled(state: RouterState, answer: SettleAnswered) -> None:
    """Dispatch the group if the lease was made and is still wanted."""
    group, is_leased = state.groups.get(answer.request_key), answer.outcome is Settled.OK
    if group is None or group.phase is not Phase.SETTLING:
        if is_leased:
            state.actions.append(ReleaseCredit(answer.request_key, answer.prefill_key))
            state.actions.append(ReleaseLease(answer.request_key, answer.decode_key))
        return
    if is_leased:
        group.credit_on, group.lease_on = answer.prefill_key, answer.decode_key
        group.decode_key = answer.decode_key
        dispatch(state, group)
        state.offer_due = True
        return
    if answer.outcome is Settled.NO_ROOM:
        state.move(group, Phase.WAITING)
        assert group.decode_key is not None, "a grant is settled for a decode worker"
        group.avoided |= {group.decode_key}
    else:
        enqueue(state, group)
    group.prefill_key = group.decode_key = None
