"""Moves groups off a decode worker that drains, to another one that takes their KV over.

First the full blocks are copied while a group runs on (pre-copy). Then the source is told to stop the group
and to offer the rest (stop-and-copy). Once it reports that it did, and with that all tokens of the group, the
next attempt begins: the target fetches the few blocks written since, computes the newest token and goes on.
If the blocks cannot be had, the group is replayed from prompt and delivered tokens, as after a failure. It
stays where it is for as long as no other worker has room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from router.core.actions import GroupMigrated, SendPreCopy, SendReceive, SendStopAndCopy
from router.core.capacity.fleet import Worker
from router.core.queue.grants import has_room
from router.core.queue.queue import begin_attempt, new_groups, spec_of
from router.core.session.finish import call_off, detach
from router.core.session.recover import start_elsewhere
from router.core.session.session import Choice, Group, Move, Phase, Session
from router.core.state import RouterState
from scheduling.placement import failed_receipts
from scheduling.request import Part, ReceiveKind, SequenceSpec

MAX_FAILED_MOVES = 2
"""After so many moves that failed a group is replayed."""


def clear(state: RouterState, worker: Worker) -> None:
    """Find another place for what decodes on a worker that drains."""
    for group in list(worker.groups.values()):
        decodes = group.phase is Phase.RUNNING and group.decode_key == worker.key and group.decode_reported
        if not decodes or group.key in state.moves:
            continue
        target = _roomiest(state, group, worker)
        if target is None:
            continue
        has_blocks = group.preempted_at is None and all(choice.token_ids for choice in group.choices)
        if has_blocks and group.failed_moves < MAX_FAILED_MOVES:
            _pre_copy(state, group, worker, target)
        else:
            start_elsewhere(state, group, worker.key)


def on_copied(state: RouterState, worker: Worker, handle: int) -> None:
    """Go on with a move once the target holds a pre-copy."""
    move = worker.copies.get(handle)
    if move is None or worker.key != move.target:
        return
    move.copying.discard(handle)
    for end in state.fleet.alive((move.source, move.target)):
        end.copies.pop(handle, None)
    if not move.copying:
        _stop_and_copy(state, move)


def on_copy_failed(state: RouterState, worker: Worker, handle: int) -> None:
    """Give a move up: its group runs on at the source, and is tried again."""
    move = worker.copies.get(handle)
    if move is not None:
        _give_up(state, move)


def on_parked(state: RouterState, worker: Worker, handle: int) -> None:
    """Let a group go on elsewhere, now that the source has stopped it and reported all of its tokens."""
    group = worker.groups.get(handle)
    if group is None:
        return
    move = state.moves.get(group.key)
    target = None if move is None else state.fleet.workers.get(move.target)
    if move is None or not move.parts or target is None or target.draining:
        start_elsewhere(state, group, worker.key)
        return
    del state.moves[group.key]
    state.actions.append(GroupMigrated(group.key, worker.key))
    detach(state, group, tell_workers=False)
    group.avoided |= {worker.key}
    for successor in new_groups(state, group.session, group.open_choices, group):
        _take_over(state, successor, worker, target, move.parts[successor.choices[0].index])


def _take_over(state: RouterState, group: Group, source: Worker, target: Worker, handle: int) -> None:
    """Send the next attempt of a group that the source has stopped, and whose blocks it offers."""
    group.prefill_key, group.decode_key = source.key, target.key
    begin_attempt(state, group, source, target, handle)
    spec = spec_of(state, group, source, target)
    state.actions.append(SendReceive(target.key, spec, source.facts.address, ReceiveKind.STOPPED))


def on_target_lost(state: RouterState, worker_key: str) -> None:
    """Give up all moves to a worker that is gone."""
    for move in [move for move in state.moves.values() if move.target == worker_key]:
        _give_up(state, move)


def _give_up(state: RouterState, move: Move) -> None:
    """Give a move up. A source that was told to stop reports so later, and the group is replayed then."""
    group = move.group
    group.failed_moves += 1
    if move.parts:  # their fences were used
        group.attempt += 1
        group.num_copies += 1
    del state.moves[group.key]
    call_off(state, move)


def _pre_copy(state: RouterState, group: Group, source: Worker, target: Worker) -> None:
    move = state.moves[group.key] = Move(group, source.key, target.key)
    size, session = state.fleet.block_size, group.session
    for choice in group.choices:
        # The newest token's KV is not written.
        num_blocks = (len(session.prompt_token_ids) + len(choice.token_ids) - 1) // size
        if choice.finish or num_blocks == 0:
            continue
        handle = next(state.handles)
        spec = spec_of(state, group, source, target)
        spec = _pre_copy_spec(spec, session, choice, num_blocks * size)
        spec = replace(spec, handle=handle, fence=replace(spec.fence, attempt=group.attempt + 1))
        move.copying.add(handle)
        source.copies[handle] = target.copies[handle] = move
        part = Part(handle, spec.fence, spec.session_age_seconds)
        state.actions.append(SendPreCopy(source.key, group.handle, part, num_blocks))
        state.actions.append(SendReceive(target.key, spec, source.facts.address, ReceiveKind.AHEAD))
    if not move.copying:
        _stop_and_copy(state, move)
    else:
        group.attempt += 1
        group.num_copies += 1


def _pre_copy_spec(spec: SequenceSpec, session: Session, choice: Choice, num_tokens: int) -> SequenceSpec:
    """Return the spec of the first tokens of one choice, whose blocks are copied while it runs on."""
    return replace(
        spec,
        fence=replace(spec.fence, choice=choice.index),
        prompt_token_ids=(*session.prompt_token_ids, *choice.token_ids)[:num_tokens],
        output_token_ids=(),
        choices=(choice.index,),
        sampling=replace(spec.sampling, n=1),
    )


def _stop_and_copy(state: RouterState, move: Move) -> None:
    group = move.group
    source, target = state.fleet.workers[move.source], state.fleet.workers[move.target]
    spec = spec_of(state, group, source, target)
    parts = []
    for choice in group.open_choices:
        handle = move.parts[choice.index] = next(state.handles)
        fence = replace(spec.fence, attempt=group.attempt + 1, choice=choice.index)
        parts.append(Part(handle, fence, spec.session_age_seconds))
    state.actions.append(SendStopAndCopy(source.key, group.handle, tuple(parts)))


def _roomiest(state: RouterState, group: Group, source: Worker) -> Worker | None:
    fitting = [
        worker
        for worker in state.fleet.decoding
        if has_room(state, group, worker) and _fits(group, worker, state.moves.values())
    ]

    def best(target: Worker) -> tuple[int, int, str]:
        failed = failed_receipts(group.failed_handoffs, source.key, target.key)
        return failed + (target.key in group.avoided), -target.free_blocks, target.key

    return min(fitting, key=best, default=None)


def _fits(group: Group, worker: Worker, moves: Iterable[Move]) -> bool:
    """Return True if a worker has blocks for a group besides those that are on their way there."""
    coming = sum(move.group.blocks for move in moves if move.target == worker.key)
    return coming + group.blocks <= worker.free_blocks
