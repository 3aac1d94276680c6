"""How much of a prompt a promise may take for cached, by the worker that would compute it.

The fleet's prefix directory says what each worker holds, but a promise must hold wherever the prompt ends up.
The next to go is offered to the workers that are free, and to the soonest alone where there are more of these
than who waits: then each counts with what it holds itself. Where any of several may come to take it, only
what all of them hold is counted, and of those behind others what every worker holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.core.capacity.fleet import Worker
from router.core.state import RouterState
from scheduling.admission.prediction import QueueAhead
from scheduling.placement import Placement


def held_by_all(state: RouterState, hits: Mapping[str, int]) -> int:
    """Tokens of the prompt that every worker has cached; `hits` are blocks by worker."""
    if not hits:
        return 0
    return _least(hits, state.fleet.computing) * state.fleet.block_size


def cached_tokens(state: RouterState, hits: Mapping[str, int], ahead: QueueAhead) -> dict[str, int]:
    """Tokens of the prompt to be counted as cached if it goes to this worker; others as `held_by_all`."""
    if not hits or ahead.requests > 0 or state.fleet.placement is Placement.CONDITIONAL:
        return {}
    free, size = state.capacity.free_workers(), state.fleet.block_size
    if len(free) > max(1, len(state.waiting)):
        return {worker.key: hits.get(worker.key, 0) * size for worker in free}
    least = _least(hits, free) * size
    return {worker.key: least for worker in free}


def _least(hits: Mapping[str, int], workers: Sequence[Worker]) -> int:
    if len(hits) < len(workers):
        return 0
    return min((hits.get(worker.key, 0) for worker in workers), default=0)
