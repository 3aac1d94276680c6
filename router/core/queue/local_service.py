"""While Redis is away, by configuration: newcomers are taken and placed by what this router alone knows.

Each router then sees its own queue only. What several of them promise of the same workers is not added up,
and no tenant is held to its share; workers keep the last word on memory, so the worst is another attempt.
"""

from __future__ import annotations

from router.core.dispatch.dispatching import dispatch_unleased
from router.core.session.session import Group
from router.core.state import RouterState
from scheduling.admission.prediction import QueueAhead
from scheduling.ordering import due_at


def work_before(state: RouterState, group: Group) -> QueueAhead:
    """What of this router waits for a worker and goes before a newcomer. Who rests is passed."""
    mine = _turn(group)
    ready = [one for one in state.stranded.values() if one is not group and one.rests_until <= state.now]
    earlier = [one.work_tokens for one in ready if _turn(one) <= mine]
    return QueueAhead(sum(earlier), len(earlier))


def serve_stranded(state: RouterState) -> None:
    """Bring on its way what is in no queue: by class, then by due time, until somebody finds no room.

    Without the configuration only what clients already hear of, whom waiting for the store would stop.
    """
    for group in sorted(state.stranded.values(), key=_turn):
        is_started = group.attempt > 0 or group.session.number > 0
        if state.now < group.rests_until:
            continue
        if not is_started and not (state.config.serves_without_store and _has_free_worker(state)):
            continue
        dispatch_unleased(state, group)


def _turn(group: Group) -> tuple[int, float, str]:
    session = group.session
    return int(session.slo.slo_class), due_at(session.aim, session.timeline.received_at), group.key


def _has_free_worker(state: RouterState) -> bool:
    """Whether a worker takes more prompts: bound late, as with the store."""
    return any(
        worker.bound_tokens < state.capacity.prompt_queue(worker).limit for worker in state.fleet.computing
    )
