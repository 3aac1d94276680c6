"""Which way our head goes: over a prefill worker, or with a decode worker alone (`choose_conditional`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.core.capacity.fleet import DECODE, PREFILL, Worker
from router.core.session.session import Group
from router.core.state import TTFT_SCALE, RouterState
from scheduling.admission.lanes import soonest
from scheduling.admission.prediction import Prediction, QueueAhead, RequestCost, decode_step_s, own_prefill_s
from scheduling.placement import PathCandidate, choose_conditional

CROWDED = 0.8
"""Share of its seats from which a decode worker's prompts keep others from getting one."""
HANDOFF_S = 0.002
"""Of two workers' time: offering, fetching and checking what the steps do not hide."""


def first_token_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Until the first token would come from a worker, its cached prefix counted."""
    return _wait_s(state, worker) + _own_s(state, group, worker)


def _wait_s(state: RouterState, worker: Worker) -> float:
    return state.capacity.prompt_queue(worker).wait_s(worker.bound_tokens)


def _own_s(state: RouterState, group: Group, worker: Worker) -> float:
    cached = group.session.prefix_hits.get(worker.key, 0) * state.fleet.block_size
    request = RequestCost(group.work_tokens, cached, group.blocks, group.num_seqs)
    return own_prefill_s(request, state.capacity.prefill_view(worker.key))


def best_paths(state: RouterState, free: list[Worker]) -> list[Worker]:
    """The workers that our waiting should be offered to, best first, one for each that waits.

    All computing workers are compared, and where the best one left is not free, waiting for it is better than
    what is free. A head that is late is offered all the same: waiting makes it no earlier.
    """
    head = state.waiting.head
    assert head is not None, "somebody waits"
    candidates = {worker.key: _candidate(state, head, worker) for worker in state.fleet.computing}
    by_key = {worker.key: worker for worker in free}
    chosen: list[Worker] = []
    while candidates and len(chosen) < len(state.waiting):
        best = choose_conditional(list(candidates.values()))
        if best is None or best.worker_key not in by_key:
            break
        if best.harms and state.fleet.open(PREFILL):
            break
        chosen.append(by_key[best.worker_key])
        del candidates[best.worker_key]
    return chosen


def _candidate(state: RouterState, group: Group, worker: Worker) -> PathCandidate:
    slo, session = group.session.aim, group.session
    own_s = _own_s(state, group, worker)
    ttft_s = state.learnt.fixed_s(own_s, state.now) + _wait_s(state, worker) + own_s
    _, q90 = state.learnt.ttft.quantiles(ttft_s * TTFT_SCALE, state.now)
    late_s = state.now - session.timeline.received_at + ttft_s * q90
    meets = slo.ttft_ms is None or late_s * 1000 <= slo.ttft_ms
    if worker.facts.role != DECODE:
        worker_s = own_s + HANDOFF_S
        return PathCandidate(worker.key, ttft_s * q90, worker_s, meets)
    view = state.capacity.decode_view(worker)
    limit, num_seqs = state.capacity.seat_limit(worker, slo.pace_ms), worker.num_seqs + group.num_seqs
    return PathCandidate(
        worker_key=worker.key,
        ttft_s=ttft_s * q90,
        worker_s=_added_s(state, own_s, group, worker) if view.num_seqs else own_s,
        meets=meets,
        harms=num_seqs > CROWDED * limit or worker.free_blocks < group.blocks,
        within_share=worker.prefill_share <= state.roles.weight(worker.key),
    )


def _added_s(state: RouterState, own_s: float, group: Group, worker: Worker) -> float:
    """What the prompt adds to steps that run for the decodes anyway."""
    steps = -(-group.work_tokens // state.capacity.chunk(worker))
    view = state.capacity.decode_view(worker)
    return max(0.0, own_s - steps * decode_step_s(view, view.num_seqs))


def along_paths(
    state: RouterState,
    request: RequestCost,
    ahead: QueueAhead,
    predicted: Prediction,
    cached: Mapping[str, int],
) -> Prediction:
    """The prediction with the wait and the own time of the worker that would have the first token soonest.

    `cached` has the prompt's tokens that some workers hold; on all others count those of `request`.

    Where requests are bound late that is the worker it will go to; at arrival they go to the shortest queue,
    and the mean over the fleet stands. So it does where more stand ahead than there are workers: each of them
    has another prompt to take first.
    """
    if state.config.policy.binds_at_arrival or ahead.requests > len(state.fleet.computing):
        return predicted
    capacity = state.capacity
    best = replace(request, cached_tokens=max((request.cached_tokens, *cached.values())))

    def own_s(key: str) -> float:
        own = replace(request, cached_tokens=cached[key]) if key in cached else request
        return own_prefill_s(own, capacity.prefill_view(key))

    least_own_s = own_prefill_s(best, capacity.capacity(None).quickest)
    wait_s, found_s = soonest(capacity.lanes(), ahead.tokens, own_s, least_own_s)
    if predicted.waits_for_slot:
        wait_s = max(wait_s, predicted.wait_s)
    return replace(predicted, ttft_s=wait_s + found_s, wait_s=wait_s)
