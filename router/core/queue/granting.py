"""Which worker's free capacity is offered to the queue, and which decode worker a granted group gets."""

from __future__ import annotations

import heapq

from router.core.actions import AskGrants
from router.core.capacity.fleet import DECODE, Worker
from router.core.dispatch.paths import best_paths, first_token_s
from router.core.session.session import Group
from router.core.state import RouterState
from scheduling.admission.prediction import decode_step_s
from scheduling.placement import DecodeCandidate, DecodeChoice, Placement, choose_decode_worker
from state.records import DecodeRoom, PrefillRoom

UNLIMITED = 10**12
"""More tokens, blocks or seats than any worker has."""


def ask_grants(state: RouterState) -> None:
    """Offer workers' free capacity to the head of the queue, as far as anything of ours waits."""
    if not state.waiting:
        return
    if state.config.policy.binds_at_arrival:
        _bind(state)
        return
    free = state.capacity.free_workers()
    if not free:
        return
    most = -(-len(state.waiting) // len(free))
    if state.fleet.placement is Placement.CONDITIONAL:
        free = best_paths(state, free)
        # One each, as long as that leaves nobody waiting for the next call's answer.
        most = -(-len(state.waiting) // len(state.fleet.computing))
    elif len(free) > len(state.waiting):
        free = _soonest(state, free, len(state.waiting))
    pace_ms = state.waiting.tightest_pace_ms
    rooms: tuple[DecodeRoom, ...] | None = None
    for worker in free:
        worker.asking = True
        if worker.facts.role == DECODE:
            decoders = _rooms(state, worker, pace_ms)
        else:
            rooms = rooms or _rooms(state, worker, pace_ms)
            decoders = rooms
        limit = state.capacity.prompt_queue(worker).limit
        state.do(AskGrants(PrefillRoom(worker.key, limit, most), decoders))


def _soonest(state: RouterState, workers: list[Worker], count: int) -> list[Worker]:
    """Those from which the first token of our head would come first, its cached prefix counted."""
    head = state.waiting.head
    assert head is not None, "somebody waits"
    avoided = head.avoided
    if not avoided and not head.session.prefix_hits:
        return heapq.nsmallest(count, workers, key=_bound)
    if not head.session.prefix_hits:
        return heapq.nsmallest(count, workers, key=lambda one: (one.key in avoided, *_bound(one)))
    return heapq.nsmallest(
        count,
        workers,
        key=lambda one: (one.key in avoided, first_token_s(state, head, one), one.leased_blocks, one.key),
    )


def _bind(state: RouterState) -> None:
    """Give what has come to the worker with the least work, which queues it: no limit is kept to."""
    workers = [worker for worker in state.fleet.computing if not worker.asking]
    if not workers:
        return
    worker = min(workers, key=_outstanding if workers[0].facts.role == DECODE else _bound)
    worker.asking = True
    state.do(AskGrants(PrefillRoom(worker.key, UNLIMITED), _rooms(state, worker, None)))


def _outstanding(worker: Worker) -> tuple[int, int, str]:
    """The shortest queue: blocks its requests will hold, then prompt tokens; ties go to the lower key."""
    return worker.leased_blocks, worker.bound_tokens, worker.key


def _bound(worker: Worker) -> tuple[int, int, str]:
    """The least prompt work; among equals, as idle ones are, the one whose steps are shared by the fewest."""
    return worker.bound_tokens, worker.leased_blocks, worker.key


def _decoders_for(state: RouterState, prefill: Worker) -> tuple[Worker, ...]:
    """Where a prompt that `prefill` computes can decode."""
    return (prefill,) if prefill.facts.role == DECODE else state.fleet.open(DECODE)


def _rooms(state: RouterState, prefill: Worker, pace_ms: int | None) -> tuple[DecodeRoom, ...]:
    return tuple(decode_room(state, one, pace_ms) for one in _decoders_for(state, prefill))


def choose_decoder(state: RouterState, group: Group, prefill: Worker) -> DecodeChoice | None:
    """The decode worker for a group whose prompt `prefill` computes."""
    workers = _decoders_for(state, prefill)
    if state.config.policy.binds_at_arrival:
        least = min(workers, key=_outstanding, default=None)
        return DecodeChoice(least.key, (), "least outstanding work") if least else None
    return choose_decode_worker([_candidate(state, group, worker) for worker in workers], group.blocks)


def _candidate(state: RouterState, group: Group, worker: Worker) -> DecodeCandidate:
    pace_ms = group.session.aim.pace_ms
    num_seqs = worker.num_seqs
    return DecodeCandidate(
        key=worker.key,
        draining=worker.draining,
        avoided=worker.key in group.avoided,
        free_blocks=worker.free_blocks,
        free_seqs=state.capacity.seat_limit(worker, pace_ms) - num_seqs,
        step_after_s=decode_step_s(state.capacity.decode_view(worker), num_seqs + group.num_seqs),
        tightest_tpot_s=worker.tightest_pace_s(pace_ms),
        cached_blocks=group.session.prefix_hits.get(worker.key, 0),
    )


def decode_room(state: RouterState, worker: Worker, pace_ms: int | None) -> DecodeRoom:
    """A worker's capacity, as far as promises allow it to be used."""
    if state.config.policy.binds_at_arrival:
        return DecodeRoom(worker.key, UNLIMITED, UNLIMITED)
    return DecodeRoom(worker.key, worker.facts.num_blocks, state.capacity.seat_limit(worker, pace_ms))
