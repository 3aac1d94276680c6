"""What runs on a decode worker that drains goes on at another one, which takes its KV over.

First the full blocks are copied while it runs on. Then the source is told to stop it; once it has said that
it did, and with that all of its tokens, the next attempt begins: the target fetches the few blocks written
since, computes the newest token and goes on. If the blocks cannot be had it is replayed, as after a failure,
from prompt and delivered tokens. It stays where it is for as long as no other worker has room.
"""

from __future__ import annotations

from dataclasses import replace

from router.core.actions import GroupMigrated, SendHandOver, SendLend, SendReceive
from router.core.capacity.fleet import DECODE, Worker
from router.core.dispatch.dispatching import ahead_of, spec_of, take_over
from router.core.dispatch.migrating import has_room
from router.core.dispatch.moves import Move, call_off
from router.core.queue.queueing import new_groups
from router.core.session import ending
from router.core.session.recovery import start_elsewhere
from router.core.session.session import Group, Phase
from router.core.state import RouterState
from scheduling.request import Part, ReceiveKind

MAX_STAYS = 2
"""After so many moves that failed a group is replayed."""


def clear(state: RouterState, worker: Worker) -> None:
    """Find another place for what decodes on a worker that drains."""
    for group in list(worker.groups.values()):
        decodes = group.phase is Phase.RUNNING and group.decode_key == worker.key and group.decode_reported
        if not decodes or group.key in state.moves:
            continue
        target = _roomiest(state, group)
        if target is None:
            continue
        has_blocks = group.preempted_at is None and all(choice.token_ids for choice in group.choices)
        if has_blocks and group.num_stays < MAX_STAYS:
            _copy_ahead(state, group, worker, target)
        else:
            start_elsewhere(state, group, worker.key)


def on_copied(state: RouterState, worker: Worker, handle: int) -> None:
    """The target holds a copy."""
    move = worker.copies.get(handle)
    if move is None or worker.key != move.target:
        return
    move.copying.discard(handle)
    for one in state.fleet.alive((move.source, move.target)):
        one.copies.pop(handle, None)
    if not move.copying:
        _stop(state, move)


def on_copy_failed(state: RouterState, worker: Worker, handle: int) -> None:
    """It runs on at the source, and is tried again."""
    move = worker.copies.get(handle)
    if move is not None:
        _give_up(state, move)


def on_parked(state: RouterState, worker: Worker, handle: int) -> None:
    """The source has stopped a group and told all of its tokens: only now may it go on elsewhere."""
    group = worker.groups.get(handle)
    if group is None:
        return
    move = state.moves.get(group.key)
    target = None if move is None else state.fleet.workers.get(move.target)
    if move is None or not move.parts or target is None or target.draining:
        start_elsewhere(state, group, worker.key)
        return
    del state.moves[group.key]
    state.counters.migrated += 1
    state.do(GroupMigrated(group.key, worker.key))
    ending.detach(state, group, tell_workers=False)
    group.avoided |= {worker.key}
    open_choices = [choice for choice in group.choices if choice.open]
    for successor in new_groups(state, group.session, open_choices, group):
        take_over(state, successor, worker, target, move.parts[successor.choices[0].index])


def on_target_lost(state: RouterState, worker_key: str) -> None:
    """Whatever was on its way there is not any more."""
    for move in [one for one in state.moves.values() if one.target == worker_key]:
        _give_up(state, move)


def _give_up(state: RouterState, move: Move) -> None:
    """If the source was told to stop it already, it says so later, and the group is replayed then."""
    group = move.group
    group.num_stays += 1
    if move.parts:  # their fences were used
        group.attempt += 1
        group.num_copies += 1
    del state.moves[group.key]
    call_off(state, move)


def _copy_ahead(state: RouterState, group: Group, source: Worker, target: Worker) -> None:
    move = state.moves[group.key] = Move(group, source.key, target.key)
    size = state.fleet.block_size
    for choice in group.choices:
        # The newest token's KV is not written.
        num_blocks = (len(group.session.prompt_token_ids) + len(choice.token_ids) - 1) // size
        if not choice.open or num_blocks == 0:
            continue
        handle = state.next_handle()
        spec = ahead_of(state, group, choice, source, target, handle, num_blocks * size)
        spec = replace(spec, fence=replace(spec.fence, attempt=group.attempt + 1))
        move.copying.add(handle)
        source.copies[handle] = target.copies[handle] = move
        state.do(SendLend(source.key, group.handle, Part(handle, spec.fence), num_blocks))
        state.do(SendReceive(target.key, spec, source.facts.address, ReceiveKind.AHEAD))
    if not move.copying:
        _stop(state, move)
    else:
        group.attempt += 1
        group.num_copies += 1


def _stop(state: RouterState, move: Move) -> None:
    group = move.group
    source, target = state.fleet.workers[move.source], state.fleet.workers[move.target]
    fence = spec_of(state, group, source, target).fence
    parts = []
    for choice in (one for one in group.choices if one.open):
        move.parts[choice.index] = state.next_handle()
        own = replace(fence, attempt=group.attempt + 1, choice=choice.index)
        parts.append(Part(move.parts[choice.index], own))
    state.do(SendHandOver(source.key, group.handle, tuple(parts)))


def _roomiest(state: RouterState, group: Group) -> Worker | None:
    fitting = [
        one for one in state.fleet.open(DECODE) if has_room(state, group, one) and _fits(state, group, one)
    ]
    return min(fitting, key=lambda one: (one.key in group.avoided, -one.free_blocks, one.key), default=None)


def _fits(state: RouterState, group: Group, worker: Worker) -> bool:
    """Besides what is on its way there."""
    coming = [move.group for move in state.moves.values() if move.target == worker.key]
    return sum(one.blocks for one in coming) + group.blocks <= worker.free_blocks
