"""Where all seats or blocks are taken, who runs of a lower class gives its own to one that would be late.

The queue's order is of no use to a request that no decode worker has room for: it waits for the end of
whatever runs, and that may be batch work with thousands of tokens to go. So one of a lower class is taken off
its worker and queued again with what was delivered, mostly to be found in the prefix cache: no attempt has
failed, and its client sees a pause. One at a time, since what came free shows in the worker's next report.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.core.admission.promising import request_cost
from router.core.capacity.fleet import DECODE, Worker
from router.core.dispatch.migrating import LEAST_BETWEEN_S, has_room
from router.core.session.recovery import start_elsewhere
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.admission.prediction import QueueAhead, own_prefill_s, slot_wait_s

LEAST_UNTIL_NEXT_S = 0.25
"""By then a worker has said that it has room."""
ALONE = QueueAhead(0, 0)


def make_way(state: RouterState) -> None:
    """Take one group of a lower class off its worker, if the head of ours would be late otherwise."""
    head = state.waiting.head
    if head is None or not state.config.policy.promises or head.phase is not Phase.WAITING:
        return
    workers = state.fleet.open(DECODE)
    if state.now - state.made_way_at < LEAST_UNTIL_NEXT_S or not _is_late(state, head):
        return
    if any(has_room(state, head, worker) for worker in workers):
        return
    found = [group for worker in workers for group in _lower_ones(state, head, worker)]
    if found:
        group = min(found, key=_price)
        assert group.decode_key is not None, "it runs"
        state.made_way_at = group.migrated_at = state.now
        start_elsewhere(state, group, group.decode_key)


def _is_late(state: RouterState, head: Group) -> bool:
    """Whether it would be, if it waited for an end."""
    if not state.fleet.serves():
        return False
    capacity = state.capacity.capacity(head.session.aim.pace_ms)
    request = request_cost(state, head.session, head)
    wait_s = slot_wait_s(request, ALONE, capacity) + own_prefill_s(request, capacity.quickest)
    return state.now + wait_s > head.due_at


def _lower_ones(state: RouterState, head: Group, worker: Worker) -> Iterator[Group]:
    """Groups that decode there and would leave room for `head`; each has run a while since it last left."""
    if worker.preempted:
        return
    free_seats = state.capacity.seat_limit(worker, head.session.aim.pace_ms) - worker.num_seqs
    for group in worker.groups.values():
        is_lower = group.session.slo.slo_class > head.session.slo.slo_class and not group.is_promoted
        decodes = group.decode_key == worker.key and group.decode_reported and group.key not in state.moves
        fits = (
            free_seats + group.num_seqs >= head.num_seqs and worker.free_blocks + group.blocks >= head.blocks
        )
        if is_lower and decodes and fits and state.now - group.migrated_at >= LEAST_BETWEEN_S:
            yield group


def _price(group: Group) -> tuple[int, int, str]:
    """The lowest class, then what is computed again the soonest."""
    return -group.session.slo.slo_class, group.work_tokens + group.delivered_tokens, group.key
