"""Where all seats or blocks are taken, a running group gives its own to one of a higher class.

The queue's order does not help a request that no decode worker has room for: it waits until something ends
that runs, and that may be batch work with thousands of tokens to go. So a group of a lower class is taken off
its worker and queued again with what was delivered, most of which the prefix cache still has. No attempt has
failed, and its client sees a pause. One group at a time: what came free shows in the worker's next report.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.core.admission.judge import cached_everywhere
from router.core.capacity.fleet import Worker
from router.core.dispatch.migrate import LEAST_BETWEEN_S
from router.core.session.recover import start_elsewhere
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.admission.prediction import QueueAhead, RequestCost, own_prefill_s, slot_wait_s

LEAST_UNTIL_NEXT_S = 0.25
"""By then a worker has reported its room."""
ALONE = QueueAhead(0, 0)


def preempt_seat(state: RouterState) -> None:
    """Take a group of a lower class off its worker, if the head of the queue would be late otherwise."""
    head = state.waiting.head
    if head is None or not state.config.policy.promises or head.phase is not Phase.WAITING:
        return
    workers = state.fleet.decoding
    if state.now - state.seat_taken_at < LEAST_UNTIL_NEXT_S or not _is_late(state, head):
        return
    if any(state.choice.has_room(head, worker, state.now) for worker in workers):
        return
    found = [group for worker in workers for group in _candidates(state, head, worker)]
    if found:
        group = min(found, key=_price)
        assert group.decode_key is not None, "it runs"
        state.seat_taken_at = group.migrated_at = state.now
        start_elsewhere(state, group, group.decode_key)


def _is_late(state: RouterState, head: Group) -> bool:
    """Return True if the head would be late if it waited for an end."""
    if not state.fleet.serves:
        return False
    capacity = state.capacity.capacity(head.session.aim.pace_ms, state.now)
    cached = cached_everywhere(state, head.session.prefix_hits)
    cost = RequestCost(head.work_tokens, cached, head.blocks, head.num_seqs)
    wait_s = slot_wait_s(cost, ALONE, capacity) + own_prefill_s(cost, capacity.quickest)
    return state.now + wait_s > head.due_at


def _candidates(state: RouterState, head: Group, worker: Worker) -> Iterator[Group]:
    """Return groups of lower classes that decode on a worker, would leave room for `head`, and have run a
    while since they last left a worker.
    """
    if worker.preempted:
        return
    free_seats = state.capacity.seat_limit(worker, head.session.aim.pace_ms, state.now) - worker.num_seqs
    for group in worker.groups.values():
        is_lower = group.session.slo.slo_class > head.session.slo.slo_class and not group.is_promoted
        decodes = group.decode_key == worker.key and group.decode_reported and group.key not in state.moves
        fits = (
            free_seats + group.num_seqs >= head.num_seqs and worker.free_blocks + group.blocks >= head.blocks
        )
        if is_lower and decodes and fits and state.now - group.migrated_at >= LEAST_BETWEEN_S:
            yield group


def _price(group: Group) -> tuple[int, int, str]:
    """Order by class, the lowest first, then by how many tokens must be computed again."""
    return -group.session.slo.slo_class, group.work_tokens + group.delivered_tokens, group.key
