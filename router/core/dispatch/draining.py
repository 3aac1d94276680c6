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
from router.core.state import Book
from scheduling.request import Part, ReceiveKind

MAX_STAYS = 2
"""After so many moves that failed a group is replayed."""


def clear(book: Book, worker: Worker) -> None:
    """Find another place for what decodes on a worker that drains."""
    for group in list(worker.groups.values()):
        decodes = group.phase is Phase.RUNNING and group.decode_key == worker.key and group.decode_reported
        if not decodes or group.key in book.moves:
            continue
        target = _roomiest(book, group)
        if target is None:
            continue
        has_blocks = group.preempted_at is None and all(choice.token_ids for choice in group.choices)
        if has_blocks and group.num_stays < MAX_STAYS:
            _copy_ahead(book, group, worker, target)
        else:
            start_elsewhere(book, group, worker.key)


def on_copied(book: Book, worker: Worker, handle: int) -> None:
    """The target holds a copy."""
    move = worker.copies.get(handle)
    if move is None or worker.key != move.target:
        return
    move.copying.discard(handle)
    for one in book.fleet.alive((move.source, move.target)):
        one.copies.pop(handle, None)
    if not move.copying:
        _stop(book, move)


def on_copy_failed(book: Book, worker: Worker, handle: int) -> None:
    """It runs on at the source, and is tried again."""
    move = worker.copies.get(handle)
    if move is not None:
        _give_up(book, move)


def on_parked(book: Book, worker: Worker, handle: int) -> None:
    """The source has stopped a group and told all of its tokens: only now may it go on elsewhere."""
    group = worker.groups.get(handle)
    if group is None:
        return
    move = book.moves.get(group.key)
    target = None if move is None else book.fleet.workers.get(move.target)
    if move is None or not move.parts or target is None or target.draining:
        start_elsewhere(book, group, worker.key)
        return
    del book.moves[group.key]
    book.counters.migrated += 1
    book.do(GroupMigrated(group.key, worker.key))
    ending.detach(book, group, tell_workers=False)
    group.avoided |= {worker.key}
    open_choices = [choice for choice in group.choices if choice.open]
    for successor in new_groups(book, group.session, open_choices, group):
        take_over(book, successor, worker, target, move.parts[successor.choices[0].index])


def on_target_lost(book: Book, worker_key: str) -> None:
    """Whatever was on its way there is not any more."""
    for move in [one for one in book.moves.values() if one.target == worker_key]:
        _give_up(book, move)


def _give_up(book: Book, move: Move) -> None:
    """If the source was told to stop it already, it says so later, and the group is replayed then."""
    group = move.group
    group.num_stays += 1
    if move.parts:  # their fences were used
        group.attempt += 1
        group.num_copies += 1
    del book.moves[group.key]
    call_off(book, move)


def _copy_ahead(book: Book, group: Group, source: Worker, target: Worker) -> None:
    move = book.moves[group.key] = Move(group, source.key, target.key)
    size = book.fleet.block_size
    for choice in group.choices:
        # The newest token's KV is not written.
        num_blocks = (len(group.session.prompt_token_ids) + len(choice.token_ids) - 1) // size
        if not choice.open or num_blocks == 0:
            continue
        handle = book.next_handle()
        spec = ahead_of(book, group, choice, source, target, handle, num_blocks * size)
        spec = replace(spec, fence=replace(spec.fence, attempt=group.attempt + 1))
        move.copying.add(handle)
        source.copies[handle] = target.copies[handle] = move
        book.do(SendLend(source.key, group.handle, Part(handle, spec.fence), num_blocks))
        book.do(SendReceive(target.key, spec, source.facts.address, ReceiveKind.AHEAD))
    if not move.copying:
        _stop(book, move)
    else:
        group.attempt += 1
        group.num_copies += 1


def _stop(book: Book, move: Move) -> None:
    group = move.group
    source, target = book.fleet.workers[move.source], book.fleet.workers[move.target]
    fence = spec_of(book, group, source, target).fence
    parts = []
    for choice in (one for one in group.choices if one.open):
        move.parts[choice.index] = book.next_handle()
        own = replace(fence, attempt=group.attempt + 1, choice=choice.index)
        parts.append(Part(move.parts[choice.index], own))
    book.do(SendHandOver(source.key, group.handle, tuple(parts)))


def _roomiest(book: Book, group: Group) -> Worker | None:
    fitting = [
        one for one in book.fleet.open(DECODE) if has_room(book, group, one) and _fits(book, group, one)
    ]
    return min(fitting, key=lambda one: (one.key in group.avoided, -one.free_blocks, one.key), default=None)


def _fits(book: Book, group: Group, worker: Worker) -> bool:
    """Besides what is on its way there."""
    coming = [move.group for move in book.moves.values() if move.target == worker.key]
    return sum(one.blocks for one in coming) + group.blocks <= worker.free_blocks
