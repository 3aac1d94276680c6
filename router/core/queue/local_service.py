"""Serves without the store: groups are placed by what this router alone knows.

Each router then sees only its own queue. What several of them promise of the same workers is not added up,
and no tenant is held to its share. Workers keep the last word on memory, so the worst is another attempt.
"""

from __future__ import annotations

from router.core.capacity.worker_facts import PREFILL
from router.core.queue.grants import decoder_for
from router.core.queue.queue import dispatch
from router.core.session.session import Group
from router.core.state import RouterState
from scheduling.admission.backlog import due_at
from scheduling.admission.prediction import QueueAhead


def work_ahead(state: RouterState, group: Group) -> QueueAhead:
    """Return the work that waits in this router ahead of a newcomer; groups that rest do not count."""
    own = _turn(group)
    ready = [
        other for other in state.stranded.values() if other is not group and other.rests_until <= state.now
    ]
    earlier = [other.work_tokens for other in ready if _turn(other) <= own]
    return QueueAhead(sum(earlier), len(earlier))


def serve_stranded(state: RouterState) -> None:
    """Dispatch stranded groups by class, then by due time.

    Only groups that were sent to workers before are served, since waiting for the store would stop their
    streams; newcomers too if `serves_without_store` is set.
    """
    for group in sorted(state.stranded.values(), key=_turn):
        was_sent = group.attempt > 0 or group.session.number > 0
        if state.now < group.rests_until:
            continue
        if not was_sent and not (state.config.serves_without_store and _has_free_worker(state)):
            continue
        _dispatch_unleased(state, group)


def _turn(group: Group) -> tuple[int, float, str]:
    session = group.session
    return int(session.slo.slo_class), due_at(session.aim, session.timeline.received_at), group.key


def _has_free_worker(state: RouterState) -> bool:
    """Return True if a worker takes more prompts: requests are bound late, as with the store."""
    return any(
        worker.bound_tokens < state.capacity.prompt_queue(worker, state.now).limit
        for worker in state.fleet.computing
    )


def _dispatch_unleased(state: RouterState, group: Group) -> None:
    """Dispatch a group without a lease, to the first worker for which there is a decode worker with room."""
    computing = sorted(
        state.fleet.computing,
        key=lambda worker: (worker.key in group.avoided, worker.bound_tokens, worker.key),
    )
    if computing and computing[0].facts.role == PREFILL:
        computing = computing[:1]
    for prefill in computing:
        decode_key = decoder_for(state, group, prefill)
        if decode_key is not None:
            group.prefill_key, group.decode_key = prefill.key, decode_key
            dispatch(state, group)
            return
