"""Offers free capacity to the queue, takes the grants that come of it, and turns each into a block lease.

offer_capacity  free capacity of the workers that serve the head of the queue best is offered to the queue
on_granted      a group has a prompt credit: choose its decode worker, and ask for a lease there
on_settled      the lease is made: the group is dispatched

After a failed attempt, ways are left to a group. A handoff fails for its source, its target, or the link
between them, and nothing says which. So the next attempt prefers a source and a target whose handoffs have
failed less often. A decode worker that computes the prompt itself needs no handoff, so failed ones do not
count for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from router.core.dispatch import dispatch, enqueue, give_back, has_output, rename, set_phase, strand
from router.core.model.actions import (
    AskGrants,
    Dequeue,
    Offer,
    ReleaseCredit,
    ReleaseLease,
    Settle,
)
from router.core.model.events import DECODE, PREFILL, Granted, SettleAnswered
from router.core.model.fleet import Worker
from router.core.model.session import Group, Phase
from router.core.model.state import RouterState
from runtime.state.records import DecodeRoom, PrefillRoom, Settled
from scheduling.placement import (
    START_WEIGHT,
    DecodeCandidate,
    PathCandidate,
    Placement,
    choose_conditional,
    choose_decode_worker,
    failed_receipts,
    without_failed,
)
from scheduling.prediction import (
    PrefillSpeed,
    RequestCost,
    blocks_needed,
    decode_step_s,
    own_prefill_s,
)

UNLIMITED = 10**12
"""More tokens, blocks or seats than any worker has."""
MOST_CLEARED = 64
"""Places that one call takes out of a queue in which nothing of this router waits."""
CROWDED = 0.8
"""Share of its seats from which a decode worker's prompts keep others from getting a seat."""
HANDOFF_S = 0.002
"""Time of two workers together: to offer, fetch and check what the steps do not hide."""


# Offers


def offer_capacity(state: RouterState) -> None:
    """Offer workers' free capacity to the head of the queue, as far as groups of this router wait."""
    num_waiting = len(state.waiting)
    if num_waiting == 0:
        if state.queue_stands:
            _clear_queue(state)
        return
    if state.config.policy.binds_at_arrival:
        _bind(state)
        return
    head, free = state.waiting.head, state.capacity.free_workers(state.now)
    assert head is not None, "a group waits"
    if head.failed_handoffs:
        free += _others_with_room(state, head)
    if not free:
        return
    most, adapter = -(-num_waiting // len(free)), head.session.request.adapter
    others: list[Worker] = []
    if adapter:
        # Those without the head's adapter pass it over, and may serve the next.
        others = [worker for worker in free if not worker.has(adapter)]
        free = [worker for worker in free if worker.has(adapter)]
    if state.fleet.placement is Placement.CONDITIONAL:
        free = _best_paths(state, head, free, num_waiting)
        # One grant each, as long as that leaves nobody waiting for the answer to the next call.
        most = -(-num_waiting // len(state.fleet.computing))
    elif len(free) > num_waiting or head.failed_handoffs:
        free = _soonest(state, head, free, num_waiting)
    pace_ms = state.waiting.tightest_pace_ms
    # Every prefill worker hands over to the same decode workers.
    shared: tuple[DecodeRoom, ...] = ()
    for worker in (*free, *others):
        if worker.facts.role == DECODE:
            _ask(state, worker, _prompt_room(state, worker, most), _rooms(state, worker, pace_ms))
        else:
            shared = shared or _rooms(state, worker, pace_ms)
            _ask(state, worker, _prompt_room(state, worker, most), shared)


def offer_at_once(state: RouterState, group: Group) -> Offer | None:
    """Return where a newcomer can be leased without waiting for a grant; None if it has to take its turn.

    It can if it states no latency, so that it is not refused either, and if nothing waits, as far as is known
    here. The store has the last word.
    """
    request = group.session.request
    if request.slo.is_stated or request.slo.deadline_ms is not None:
        return None
    if state.waiting or state.config.policy.binds_at_arrival:
        return None
    free = [worker for worker in state.capacity.free_workers(state.now) if worker.has(request.adapter)]
    is_conditional = state.fleet.placement is Placement.CONDITIONAL
    found = (_best_paths if is_conditional else _soonest)(state, group, free, 1)
    decode_key = decoder_for(state, group, found[0]) if found else None
    if decode_key is None:
        return None
    return Offer(_prompt_room(state, found[0], 1), _room_at(state, decode_key, None))


def _ask(state: RouterState, worker: Worker, room: PrefillRoom, decoders: tuple[DecodeRoom, ...]) -> None:
    """Ask for grants to a worker; no other call for it begins before the answer."""
    worker.asking = True
    state.actions.append(AskGrants(room, decoders))


def _prompt_room(state: RouterState, worker: Worker, most: int) -> PrefillRoom:
    """Return a worker's capacity for prompts, of which one call may grant so many."""
    queue = state.capacity.prompt_queue(worker, state.now)
    return PrefillRoom(worker.key, queue.limit, most, worker.adapters, queue.min_prompts)


def _rooms(state: RouterState, prefill: Worker, pace_ms: int | None) -> tuple[DecodeRoom, ...]:
    """Return the capacity of the workers where a prompt that `prefill` computes can decode."""
    return tuple(_room(state, worker, pace_ms) for worker in _decoders_for(state, prefill))


def _clear_queue(state: RouterState) -> None:
    """Ask for grants although nothing of this router waits: a newcomer was turned away for what does.

    Places of a router that died, or that the store entered late, leave the queue when they are granted. If
    all its places are such, nobody would ask, and every newcomer would be refused for ever.
    """
    state.queue_stands = False
    worker = min((each for each in state.fleet.computing if not each.asking), key=_bound, default=None)
    if worker is not None:
        _ask(state, worker, _prompt_room(state, worker, MOST_CLEARED), _rooms(state, worker, None))


def _bind(state: RouterState) -> None:
    """Offer the worker with the least work, which queues what it gets: it has no limit."""
    head = state.waiting.head
    assert head is not None, "a group waits"
    workers = [worker for worker in sources(state, head) if not worker.asking]
    if workers:
        load = _outstanding if workers[0].facts.role == DECODE else _bound
        worker = min(workers, key=lambda each: (avoids(head, each), load(each)))
        room = PrefillRoom(worker.key, UNLIMITED, adapters=worker.adapters)
        _ask(state, worker, room, _rooms(state, worker, None))


def _others_with_room(state: RouterState, head: Group) -> list[Worker]:
    """Return free workers that get no prompts as a rule, and may compute the head's."""
    usual = state.fleet.computing
    return [
        worker
        for worker in sources(state, head)
        if worker not in usual
        and not worker.asking
        and state.capacity.prompt_queue(worker, state.now).has_room(worker)
    ]


def _soonest(state: RouterState, head: Group, free: Sequence[Worker], count: int) -> list[Worker]:
    """Return the `count` free workers from which the head's first token would come first."""
    if not head.session.prefix_hits.has_any and not head.session.request.adapter:
        return heapq.nsmallest(count, free, key=lambda worker: (avoids(head, worker), *_bound(worker)))

    def first_token(worker: Worker) -> tuple[int, float, int, str]:
        first_token_s = _first_token_s(state, head, worker)
        return avoids(head, worker), first_token_s, worker.leased_blocks, worker.key

    return heapq.nsmallest(count, free, key=first_token)


def _best_paths(state: RouterState, head: Group, free: Sequence[Worker], count: int) -> list[Worker]:
    """Return at most `count` free workers to offer to the queue, the best first.

    All computing workers are compared (`choose_conditional`), and where the best one left is not free,
    waiting for it is better than what is free. A head that is late is offered all the same: waiting makes it
    no earlier.
    """
    waits_s = {lane.key: lane.wait_s for lane in state.capacity.lanes(state.now)}
    adapter = head.session.request.adapter
    candidates = {
        worker.key: _path(state, head, worker, waits_s[worker.key])
        for worker in state.fleet.computing
        if not adapter or worker.has(adapter)
    }
    by_key = {worker.key: worker for worker in free}
    chosen: list[Worker] = []
    prefilling = state.fleet.prefilling
    has_failed = bool(head.failed_workers or head.failed_handoffs)
    if has_failed and candidates:
        # A prefill worker that has failed the head is no reason to wait.
        least = min(path.failed for path in candidates.values())
        prefilling = tuple(worker for worker in prefilling if failed_at(head, worker) <= least)
    while candidates and len(chosen) < count:
        paths = list(candidates.values())
        best = choose_conditional(without_failed(paths) if has_failed else paths)
        if best is None or best.worker_key not in by_key:
            break
        if best.crowds and prefilling:
            break
        chosen.append(by_key[best.worker_key])
        del candidates[best.worker_key]
    return chosen


def _path(state: RouterState, group: Group, worker: Worker, wait_s: float) -> PathCandidate:
    slo, session, now = group.session.aim, group.session, state.now
    queue = state.capacity.prompt_queue(worker, now)
    own_s = _own_s(state, group, worker, queue.speed)
    ttft_s = state.learnt.late_ttft_s(wait_s, own_s, now)
    meets = slo.ttft_ms is None or (now - session.timeline.received_at + ttft_s) * 1000 <= slo.ttft_ms
    failed = failed_at(group, worker)
    if worker.facts.role != DECODE:
        return PathCandidate(worker.key, ttft_s, own_s / queue.num_steps + HANDOFF_S, meets, failed=failed)
    view = state.capacity.decode_view(worker, now)
    limit = state.capacity.seat_limit(worker, slo.pace_ms, now)
    num_seqs = worker.num_seqs + group.num_seqs
    worker_s = own_s
    if view.num_seqs:
        # What the prompt adds to steps that run for the decodes anyway.
        steps = -(-group.work_tokens // state.capacity.chunk(worker, now))
        worker_s = max(0.0, own_s - steps * decode_step_s(view, view.num_seqs))
    return PathCandidate(
        worker_key=worker.key,
        ttft_s=ttft_s,
        worker_s=worker_s / queue.num_steps,
        meets=meets,
        crowds=num_seqs > CROWDED * limit or worker.free_blocks < group.blocks,
        within_share=worker.prefill_share <= state.fleet.roles.weights.get(worker.key, START_WEIGHT),
        failed=failed,
    )


def _first_token_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Return the seconds until a worker has a group's first token, behind what is bound to it."""
    queue = state.capacity.prompt_queue(worker, state.now)
    return queue.wait_s(worker.bound_tokens) + _own_s(state, group, worker, queue.speed)


def _own_s(state: RouterState, group: Group, worker: Worker, speed: PrefillSpeed) -> float:
    hits, adapter, cached_tokens, read_s = group.session.prefix_hits, group.session.request.adapter, 0, 0.0
    if hits.has_any or hits.has_reads:
        held = hits.held_by(worker.key, state.fleet.block_size, worker.cost)
        cached_tokens, read_s = held.num_tokens, held.read_s
    cost = RequestCost(group.work_tokens, cached_tokens, group.blocks, group.num_seqs, read_s=read_s)
    own_s = own_prefill_s(cost, speed)
    return worker.load_s(adapter) + own_s if adapter else own_s


def _room(state: RouterState, worker: Worker, pace_ms: int | None) -> DecodeRoom:
    """Return a decode worker's capacity, as far as promises allow it to be used."""
    if state.config.policy.binds_at_arrival:
        return DecodeRoom(worker.key, UNLIMITED, UNLIMITED, worker.adapters)
    seats = state.capacity.seat_limit(worker, pace_ms, state.now)
    return DecodeRoom(worker.key, worker.facts.num_blocks, seats, worker.adapters)


def has_room(state: RouterState, group: Group, worker: Worker) -> bool:
    """Return True if a group could go on at a decode worker at once."""
    if not worker.has(group.session.request.adapter):
        return False
    seats = state.capacity.seat_limit(worker, group.session.aim.pace_ms, state.now) - worker.num_seqs
    return worker.free_blocks >= group.blocks and seats >= group.num_seqs and not worker.preempted


def _outstanding(worker: Worker) -> tuple[int, int, str]:
    """Order by blocks that a worker's requests will hold, then by prompt tokens, then by key."""
    return worker.leased_blocks, worker.bound_tokens, worker.key


def _bound(worker: Worker) -> tuple[int, int, str]:
    """Order by prompt work; among equals, such as idle workers, by how few share the worker's steps."""
    return worker.bound_tokens, worker.leased_blocks, worker.key


# Grants and leases


def on_granted(state: RouterState, grant: Granted) -> None:
    """Take a grant, if its group still waits for one."""
    group = state.groups.get(grant.request_key)
    if group is None:
        give_back(state, grant)  # it ended while the grant was on its way
    elif group.phase is Phase.ENQUEUEING:
        group.early_grant = grant
    elif group.phase is Phase.WAITING:
        take_grant(state, group, grant)
    elif group.phase is Phase.RUNNING:
        # A call for its place was executed late. What the grant holds runs out by itself.
        state.actions.append(Dequeue(group.key))


def take_grant(state: RouterState, group: Group, grant: Granted) -> None:
    """Turn a grant into a lease, or give it back.

    The lease is asked of the best decode worker; if that one has no room for it, of the decode worker where
    the grant holds room. A worker whose KV has not arrived before is passed over where another one is left.
    """
    if grant.is_leased:
        group.prefill_key, group.decode_key = grant.worker_key, grant.decode_key
        set_phase(state, group, Phase.SETTLING)
        on_settled(state, SettleAnswered(group.key, grant.worker_key, grant.decode_key, Settled.OK))
        return
    worker = state.fleet.workers.get(grant.worker_key)
    if worker is not None and _is_too_late(state, group, worker):
        group.is_relegated = True
        give_back(state, grant)
        rename(state, group)
        enqueue(state, group)
        return
    if worker is None or worker.draining or goes_round(state, group, worker):
        decode_key = None
    else:
        decode_key = decoder_for(state, group, worker)
    if decode_key is None:
        give_back(state, grant)
        strand(state, group)
        return
    group.prefill_key, group.decode_key = grant.worker_key, decode_key
    set_phase(state, group, Phase.SETTLING)
    # Each once, in this order.
    keys = dict.fromkeys((decode_key, grant.decode_key))
    rooms = tuple(_room_at(state, key, group.session.aim.pace_ms) for key in keys)
    state.actions.append(Settle(group.key, grant.worker_key, rooms))


def _is_too_late(state: RouterState, group: Group, worker: Worker) -> bool:
    """Return True if its turn has come too late for a request that waits for its first token."""
    if not state.config.policy.late_go_last or group.is_relegated or has_output(group.session):
        return False
    return state.now + _first_token_s(state, group, worker) > group.due_at


def _room_at(state: RouterState, worker_key: str, pace_ms: int | None) -> DecodeRoom:
    """Return a decode worker's capacity; none where it takes nothing new."""
    worker = state.fleet.workers.get(worker_key)
    if worker is None or worker.draining:
        return DecodeRoom(worker_key, 0, 0)
    return _room(state, worker, pace_ms)


def decoder_for(state: RouterState, group: Group, prefill: Worker) -> str | None:
    """Return the key of the decode worker for a group whose prompt `prefill` computes, if any has room.

    None as well if `prefill` does not have the group's adapter.
    """
    adapter, workers = group.session.request.adapter, _decoders_for(state, prefill)
    if adapter:
        if not prefill.has(adapter):
            return None
        workers = tuple(worker for worker in workers if worker.has(adapter))
    if state.config.policy.binds_at_arrival:
        return min(workers, key=_outstanding).key if workers else None
    candidates = [_decoder(state, group, prefill, worker) for worker in workers]
    if adapter and any(worker.load_s(adapter) for worker in workers):
        candidates = [
            replace(each, delay_s=worker.load_s(adapter) + group.expected_tokens * each.step_after_s)
            for each, worker in zip(candidates, workers, strict=True)
        ]
    found = choose_decode_worker(candidates, group.blocks, state.config.policy.scores)
    return None if found is None else found.key


def _decoders_for(state: RouterState, prefill: Worker) -> tuple[Worker, ...]:
    """Return where a prompt that `prefill` computes can decode."""
    return (prefill,) if prefill.facts.role == DECODE else state.fleet.decoding


def _decoder(state: RouterState, group: Group, source: Worker, worker: Worker) -> DecodeCandidate:
    pace_ms, num_seqs, failed = group.session.aim.pace_ms, worker.num_seqs, group.failed_handoffs
    view = state.capacity.decode_view(worker, state.now)
    return DecodeCandidate(
        key=worker.key,
        draining=worker.draining,
        avoided=worker.key in group.avoided,
        free_blocks=worker.free_blocks,
        free_seqs=state.capacity.seat_limit(worker, pace_ms, state.now) - num_seqs,
        step_after_s=decode_step_s(view, num_seqs + group.num_seqs),
        tpot_s=float("inf") if pace_ms is None else pace_ms / 1000,
        held_tpot_s=worker.tightest_pace_s(),
        num_seqs=num_seqs,
        cached_blocks=group.session.prefix_hits.cached.get(worker.key, 0),
        failed_receipts=failed_receipts(failed, source.key, worker.key) if failed else 0,
    )


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
        state.fleet.bind_prompt(answer.prefill_key)
        group.decode_key = answer.decode_key
        dispatch(state, group)
        state.offer_due = True
        return
    if answer.outcome is Settled.NO_ROOM:
        set_phase(state, group, Phase.WAITING)
        assert group.decode_key is not None, "a grant is settled for a decode worker"
        group.avoided |= {group.decode_key}
    else:
        enqueue(state, group)
    group.prefill_key = group.decode_key = None


# Ways that are left after attempts failed


def failed_at(group: Group, worker: Worker) -> int:
    """Return how often a worker failed the group that was to compute its prompt."""
    return (worker.key in group.failed_workers) + _failed_sends(group, worker)


def avoids(group: Group, worker: Worker) -> int:
    """Return how often a worker failed the group, had no room for it, or gave it up."""
    return (worker.key in group.avoided) + _failed_sends(group, worker)


def _failed_sends(group: Group, worker: Worker) -> int:
    if worker.facts.role == DECODE:
        return 0
    return sum(failed.source == worker.key for failed in group.failed_handoffs)


def sources(state: RouterState, group: Group) -> tuple[Worker, ...]:
    """Return the workers that may compute a group's prompt.

    Decode workers are among them, whatever the placement, once every prefill worker has failed the group.
    """
    fleet, adapter = state.fleet, group.session.request.adapter
    found = tuple(worker for worker in fleet.computing if worker.has(adapter))
    if not group.failed_handoffs or DECODE in fleet.computing_roles:
        return found
    if all(failed_at(group, worker) for worker in found):
        found += tuple(worker for worker in fleet.decoding if worker.has(adapter))
    return found


def goes_round(state: RouterState, group: Group, worker: Worker) -> bool:
    """Return True if the group waits for another worker than this one, whose KV has not arrived before."""
    if worker.key not in (failed.source for failed in group.failed_handoffs):
        return False
    count = failed_at(group, worker)
    return any(failed_at(group, other) < count and _holds(group, other) for other in sources(state, group))


def _holds(group: Group, worker: Worker) -> bool:
    """Return True if a worker is a prefill worker, or could hold the whole group."""
    if worker.facts.role == PREFILL:
        return True
    session, size = group.session, worker.facts.block_size
    most = blocks_needed(
        len(session.request.prompt_token_ids), session.request.stop.max_tokens, group.num_seqs, size
    )
    return most <= worker.facts.num_blocks
