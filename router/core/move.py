"""Groups leave their workers before they have ended.

A worker drains. Its groups go to another one that takes their KV over. First the full blocks are copied while
a group runs on (pre-copy). Then the source is told to stop the group and to offer the rest (stop-and-copy).
Once it reports that it did, and with that all tokens of the group, the next attempt begins: the target
fetches the few blocks written since, computes the newest token and goes on. If the blocks cannot be had, the
group is replayed from prompt and delivered tokens, as after a failure. It stays where it is for as long as no
other worker has room.

A worker has no blocks for a group. The group would wait for others to end; another worker must compute all of
its tokens again. If it would run sooner there, it is cancelled where it is, and queued with what was
delivered: no attempt has failed. At most once a second, so that a fleet short of blocks everywhere does not
move its groups back and forth.

All seats or blocks are taken. The queue's order does not help a request that no decode worker has room for:
it waits until something ends that runs, and that may be batch work with thousands of tokens to go. So a group
of a lower class is taken off its worker and queued again with what was delivered, most of which the prefix
cache still has. No attempt has failed, and its client sees a pause. One group at a time: what came free shows
in the worker's next report.

Nor does the order help a tenant while the sequences of another one hold every seat, and all of them run for
minutes. A group of that tenant goes, of the same class or a lower one and without a promise, as long as its
tenant keeps at least as many seats (`scheduling/admission/shares.py`). This router sees its own groups only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from router.core.dispatch import begin_attempt, new_groups, spec_of
from router.core.finish import call_off, detach
from router.core.grant import has_room
from router.core.judge import held_everywhere
from router.core.model.actions import GroupMigrated, GroupPreempted, SendPreCopy, SendReceive, SendStopAndCopy
from router.core.model.fleet import Worker
from router.core.model.session import NOTHING, Choice, Group, Move, Phase, Session
from router.core.model.state import RouterState
from router.core.recover import start_elsewhere
from scheduling.admission.shares import PATIENCE_S, may_yield
from scheduling.placement import failed_receipts
from scheduling.prediction import RequestCost, decode_step_s, own_prefill_s, slot_wait_s
from scheduling.request import Part, ReceiveKind, SequenceSpec

MAX_FAILED_MOVES = 2
"""After so many moves that failed a group is replayed."""
LEAST_BETWEEN_S = 1.0
LEAST_UNTIL_NEXT_S = 0.25
"""By then a worker has reported its room."""


# A worker that drains


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
        num_blocks = (len(session.request.prompt_token_ids) + len(choice.token_ids) - 1) // size
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
        prompt_token_ids=(*session.request.prompt_token_ids, *choice.token_ids)[:num_tokens],
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


# Blocks


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
            other for other in state.fleet.decoding if other is not worker and has_room(state, group, other)
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
    tokens = len(group.session.request.prompt_token_ids) + len(group.choices[0].token_ids)
    computing = worker if worker in state.fleet.computing else state.fleet.computing[0]
    speed = state.capacity.prefill_speed(computing, state.now)
    return own_prefill_s(RequestCost(tokens, 0, group.blocks, group.num_seqs), speed)


# Seats


def preempt_seat(state: RouterState) -> None:
    """Take a group off its worker for one that waits: of a higher class, or of a tenant with fewer seats."""
    head = state.waiting.head
    if head is None or not state.config.policy.promises:
        return
    if state.now - state.seat_taken_at < LEAST_UNTIL_NEXT_S:
        return
    found: list[Group] = []
    if head.phase is Phase.WAITING and _is_late(state, head):
        found = _candidates(state, head, _is_lower)
    if not found and (head := _passed_over(state)) is not None:
        found = _candidates(state, head, partial(_yields, state))
    if found:
        group = min(found, key=_price)
        assert group.decode_key is not None, "it runs"
        state.seat_taken_at = group.migrated_at = state.now
        start_elsewhere(state, group, group.decode_key)


def _passed_over(state: RouterState) -> Group | None:
    """Return the group that has waited for its turn in vain whose tenant has the fewest seats, if any.

    Where only one tenant has groups that wait or run, none is.
    """
    shares = state.running_shares
    fewest = min(state.waiting.first_by_tenant, key=lambda group: shares.of(group.session.request.tenant))
    waited_s = state.now - fewest.session.timeline.received_at
    if fewest.phase is not Phase.WAITING or waited_s < PATIENCE_S:
        return None
    return fewest if shares.has_others(fewest.session.request.tenant) else None


def _is_late(state: RouterState, head: Group) -> bool:
    """Return True if the head would be late if it waited for an end."""
    if not state.fleet.serves:
        return False
    capacity = state.capacity.capacity(head.session.aim.pace_ms, state.now)
    held = held_everywhere(state, head.session.prefix_hits)
    cost = RequestCost(head.work_tokens, held.num_tokens, head.blocks, head.num_seqs, read_s=held.read_s)
    wait_s = slot_wait_s(cost, NOTHING, capacity) + own_prefill_s(cost, capacity.quickest)
    return state.now + wait_s > head.due_at


def _is_lower(head: Group, group: Group) -> bool:
    return group.session.request.slo.slo_class > head.session.request.slo.slo_class and not group.is_promoted


def _yields(state: RouterState, head: Group, group: Group) -> bool:
    """Return True if the tenant of a running group can spare its seats for that of the `head`."""
    own, other = group.session.request, head.session.request
    if own.tenant == other.tenant or group.is_promoted or own.slo.slo_class < other.slo.slo_class:
        return False
    shares = state.running_shares
    return group.session.aim.pace_ms is None and may_yield(
        shares.of(own.tenant), group.seat_share, shares.of(other.tenant), head.seat_share
    )


def _candidates(state: RouterState, head: Group, gives_way: Callable[[Group, Group], bool]) -> list[Group]:
    """Return the running groups that may give way to `head`; none if some worker has room for it."""
    workers = state.fleet.decoding
    if any(has_room(state, head, worker) for worker in workers):
        return []
    found = (group for worker in workers for group in _leaving_room(state, head, worker))
    return [group for group in found if gives_way(head, group)]


def _leaving_room(state: RouterState, head: Group, worker: Worker) -> Iterator[Group]:
    """Return groups that decode on a worker, would leave room for `head`, and have run a while since they
    last left a worker.
    """
    if worker.preempted:
        return
    free_seats = state.capacity.seat_limit(worker, head.session.aim.pace_ms, state.now) - worker.num_seqs
    for group in worker.groups.values():
        decodes = group.decode_key == worker.key and group.decode_reported and group.key not in state.moves
        fits = (
            free_seats + group.num_seqs >= head.num_seqs and worker.free_blocks + group.blocks >= head.blocks
        )
        if decodes and fits and state.now - group.migrated_at >= LEAST_BETWEEN_S:
            yield group


def _price(group: Group) -> tuple[int, int, str]:
    """Order by class, the lowest first, then by how many tokens must be computed again."""
    return -group.session.request.slo.slo_class, group.work_tokens + group.delivered_tokens, group.key
