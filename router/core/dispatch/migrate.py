"""Moves a group whose worker has no blocks for it, if the group would run again sooner elsewhere.

A group that waits for blocks waits for others to end; another worker must compute all of its tokens again.
The group is cancelled where it is, and queued with what was delivered: no attempt has failed. At most once a
second, so that a fleet short of blocks everywhere does not move its groups back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core.actions import GroupPreempted
from router.core.capacity.fleet import Worker
from router.core.session.recover import start_elsewhere
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.admission.prediction import RequestCost, decode_step_s, own_prefill_s

LEAST_BETWEEN_S = 1.0


def on_preempted(state: RouterState, worker: Worker, handles: Iterable[int]) -> None:
    """Take in that a worker took the blocks of these groups."""
    for handle in handles:
        group = worker.groups.get(handle)
        if group is None or group.preempted_at is not None or worker.key != group.decode_key:
            continue
        group.preempted_at = state.now
        worker.preempted[handle] = group
        state.actions.append(GroupPreempted(group.key, worker.key))


def on_resumed(worker: Worker, handles: Iterable[int]) -> None:
    """Take in that these groups run again."""
    for handle in handles:
        group = worker.preempted.pop(handle, None)
        if group is not None:
            group.preempted_at = None


def migrate(state: RouterState, worker: Worker) -> None:
    """Move groups that wait for blocks on a worker, and would run sooner elsewhere."""
    for group in list(worker.preempted.values()):
        if state.now - group.migrated_at < LEAST_BETWEEN_S or group.phase is not Phase.RUNNING:
            continue
        others = (
            other
            for other in state.fleet.decoding
            if other is not worker and state.choice.has_room(group, other, state.now)
        )
        elsewhere_s = min((_elsewhere_s(state, group, other) for other in others), default=float("inf"))
        if elsewhere_s < _here_s(state, group, worker):
            group.migrated_at = state.now
            start_elsewhere(state, group, worker.key)


def _here_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Return the time until enough others have ended here, and the group's tokens are computed again."""
    view = state.capacity.decode_view(worker, state.now)
    running = max(1, view.num_seqs - sum(other.num_seqs for other in worker.preempted.values()))
    ends_per_s = running / (view.mean_remaining_tokens * decode_step_s(view, running))
    # Groups that were preempted before get their blocks first.
    ahead = [other for other in worker.preempted.values() if _since(other) <= _since(group)]
    short = sum(other.blocks for other in ahead) - worker.load.free_blocks
    ends = short / view.mean_blocks if view.mean_blocks else 0.0
    return max(0.0, ends) / ends_per_s + _computed_s(state, group, worker)


def _since(group: Group) -> float:
    assert group.preempted_at is not None, "the group is preempted"
    return group.preempted_at


def _elsewhere_s(state: RouterState, group: Group, worker: Worker) -> float:
    """Return the time until its tokens are computed anew, behind the prompts bound to workers."""
    wait_s = state.fleet.bound_tokens / state.capacity.prefill_rate(None, state.now)
    return wait_s + _computed_s(state, group, worker)


def _computed_s(state: RouterState, group: Group, worker: Worker) -> float:
    tokens = len(group.session.prompt_token_ids) + len(group.choices[0].token_ids)
    computing = worker if worker in state.fleet.computing else state.fleet.computing[0]
    speed = state.capacity.prefill_speed(computing.key, state.now)
    return own_prefill_s(RequestCost(tokens, 0, group.blocks, group.num_seqs), speed)
