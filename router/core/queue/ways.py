"""Ways that are left to a group whose attempts failed: the workers that may compute its prompt.

A handoff fails for its source, its target, or the link between them, and nothing says which. So the next
attempt prefers a source and a target whose handoffs have failed less often. A decode worker that computes the
prompt itself needs no handoff, so failed ones do not count for it.
"""

from __future__ import annotations

from router.core.capacity.fleet import Worker
from router.core.capacity.worker_facts import DECODE, PREFILL
from router.core.session.session import Group
from router.core.state import RouterState
from scheduling.memory.reservation import blocks_needed


def failed_at(group: Group, worker: Worker) -> int:
    """Return how often a worker failed the group that was to compute its prompt."""
    return (worker.key in group.failed_workers) + _failed_sends(group, worker)


def avoids(group: Group, worker: Worker) -> int:
    """Return the same, and count also where the group had no room, or was taken from."""
    return (worker.key in group.avoided) + _failed_sends(group, worker)


def _failed_sends(group: Group, worker: Worker) -> int:
    if worker.facts.role == DECODE:
        return 0
    return sum(failed.source == worker.key for failed in group.failed_handoffs)


def sources(state: RouterState, group: Group) -> tuple[Worker, ...]:
    """Return the workers that may compute a group's prompt.

    Decode workers are among them, whatever the placement, once every prefill worker has failed the group.
    """
    fleet, adapter = state.fleet, group.session.adapter
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
    most = blocks_needed(len(session.prompt_token_ids), session.stop.max_tokens, group.num_seqs, size)
    return most <= worker.facts.num_blocks
