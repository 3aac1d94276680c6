"""A group whose worker has no blocks for it goes on elsewhere, if it would run again sooner there.

What waits for blocks waits for others to end; another worker must compute all of its tokens again. The group
is cancelled where it is, and queued with what was delivered: no attempt has failed. At most once a second, so
that a fleet short of blocks everywhere does not throw its groups to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core.actions import GroupPreempted
from router.core.capacity.fleet import DECODE, Worker
from router.core.session.recovery import start_elsewhere
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.admission.prediction import RequestCost, decode_step_s, own_prefill_s

LEAST_BETWEEN_S = 1.0


def on_preempted(state: RouterState, worker: Worker, handles: Iterable[int]) -> None:
    """A worker took the blocks of these."""
    for handle in handles:
        group = worker.groups.get(handle)
        if group is None or group.preempted_at is not None or worker.key != group.decode_key:
            continue
        group.preempted_at = state.now
        worker.preempted[handle] = group
        state.counters.preempted += 1
        state.do(GroupPreempted(group.key, worker.key))


def on_resumed(worker: Worker, handles: Iterable[int]) -> None:
    """These run again."""
    for handle in handles:
        group = worker.preempted.pop(handle, None)
        if group is not None:
            group.preempted_at = None


def migrate(state: RouterState, worker: Worker) -> None:
    """Move what waits for blocks on a worker, and is better off elsewhere."""
    for group in list(worker.preempted.values()):
        if state.now - group.migrated_at < LEAST_BETWEEN_S or group.phase is not Phase.RUNNING:
            continue
        others = (
            one for one in state.fleet.open(DECODE) if one is not worker and has_room(state, group, one)
        )
        elsewhere_s = min((_elsewhere_s(state, group, one) for one in others), default=float("inf"))
        if elsewhere_s < _here_s(state, group, worker):
            _move(state, group, worker)


def has_room(state: RouterState, group: Group, worker: Worker) -> bool:
    """Whether a group could go on there at once."""
    seats = state.capacity.seat_limit(worker, group.session.aim.pace_ms) - worker.num_seqs
    return worker.free_blocks >= group.blocks and seats >= group.num_seqs and not worker.preempted


def _here_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Until enough of those that run there have ended, and its tokens were computed again."""
    view = state.capacity.decode_view(worker)
    running = max(1, view.num_seqs - sum(one.num_seqs for one in worker.preempted.values()))
    ends_per_s = running / (view.mean_remaining_tokens * decode_step_s(view, running))
    # Before its own blocks come those of whoever was preempted before it.
    ahead = [one for one in worker.preempted.values() if _since(one) <= _since(group)]
    short = sum(one.blocks for one in ahead) - worker.load.free_blocks
    ends = short / view.mean_blocks if view.mean_blocks else 0.0
    return max(0.0, ends) / ends_per_s + _computed_s(state, group, worker)


def _since(group: Group) -> float:
    assert group.preempted_at is not None, "asked only of the preempted"
    return group.preempted_at


def _elsewhere_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Behind the prompts bound to workers, computed anew."""
    wait_s = state.fleet.bound_tokens / state.capacity.capacity(None).prefill_rate
    return wait_s + _computed_s(state, group, worker)


def _computed_s(state: RouterState, group: Group, worker: Worker) -> float:
    tokens = len(group.session.prompt_token_ids) + len(group.choices[0].token_ids)
    computing = worker if worker in state.fleet.computing else state.fleet.computing[0]
    view = state.capacity.prefill_view(computing.key)
    return own_prefill_s(RequestCost(tokens, 0, group.blocks, group.num_seqs), view)


def _move(state: RouterState, group: Group, worker: Worker) -> None:
    group.migrated_at = state.now
    start_elsewhere(state, group, worker.key)
