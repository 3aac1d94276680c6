"""Groups and their places in the fleet's queue, up to the block lease."""

from __future__ import annotations

from collections.abc import Sequence

from router.core.actions import Dequeue, Enqueue, ReleaseCredit, ReleaseLease, Settle
from router.core.events import Granted
from router.core.queue.granting import choose_decoder, decode_room
from router.core.session.session import Choice, Group, Phase, Session
from router.core.state import RouterState
from scheduling.memory.reservation import blocks_needed
from scheduling.ordering import due_at, rank
from scheduling.request import SloClass
from state.records import DecodeRoom, QueueEntry, Settled


def most_blocks(state: RouterState, session: Session, num_choices: int) -> int:
    """KV blocks that many choices can grow to. Delivered tokens only moved from output to prompt."""
    return blocks_needed(
        len(session.prompt_token_ids), session.stop.max_tokens, num_choices, state.fleet.block_size
    )


def leased_blocks(state: RouterState, session: Session, num_choices: int) -> int:
    """Blocks to lease: what so many choices can grow to, or will by what outputs of their class were.

    Most sequences are far from their end, so a sum of expected ends is more than what is held at any moment;
    where it is not, the worker preempts.
    """
    if state.config.policy.reserves_maximum:
        return most_blocks(state, session, num_choices)
    expected = max(1, round(expected_output(state, session)))
    prompt = len(session.prompt_token_ids)
    return blocks_needed(prompt, expected, num_choices, state.fleet.block_size)


def expected_output(state: RouterState, session: Session) -> float:
    """Tokens one choice will probably have."""
    stop = session.stop
    lengths = state.learnt.lengths[session.slo.slo_class]
    expected = lengths.expected(stop.max_tokens, ignore_eos=stop.ignore_eos)
    done = max(len(choice.token_ids) for choice in session.choices)
    return max(expected, min(1.25 * done, stop.max_tokens))


def new_groups(
    state: RouterState, session: Session, choices: Sequence[Choice], parent: Group | None = None
) -> list[Group]:
    """Groups of these choices: each that has output alone with it, all others together."""
    untouched = [choice for choice in choices if not choice.token_ids]
    parts = [[choice] for choice in choices if choice.token_ids] + ([untouched] if untouched else [])
    groups = []
    for part in parts:
        group = Group(
            key=session.group_key(part[0].index),
            session=session,
            choices=part,
            blocks=leased_blocks(state, session, len(part)),
            work_tokens=len(session.prompt_token_ids) + len(part[0].token_ids),
            expected_tokens=round(expected_output(state, session)) * len(part),
        )
        if parent is not None:
            group.attempt, group.failures = parent.attempt, parent.failures
            group.lost_with, group.handed_by = parent.lost_with, parent.handed_by
            group.pardoned, group.failed_with = parent.pardoned, parent.failed_with
            group.brought = parent.brought
            group.num_copies = parent.num_copies
            group.avoided, group.migrated_at = parent.avoided, parent.migrated_at
        for choice in part:
            choice.group = group
        session.groups.append(group)
        state.groups[group.key] = group
        groups.append(group)
    return groups


def enqueue(state: RouterState, group: Group) -> None:
    """Ask for a place; a place it has already only moves. Whoever was delivered tokens goes first."""
    if group.phase is not Phase.WAITING:
        group.due_at = _due_at(group)
        state.move(group, Phase.ENQUEUEING)
    group.asked_at = state.now
    state.waiting.asked(group)
    slo_class, due_in_ms = _rank(state, group)
    entry = QueueEntry(
        request_key=group.key,
        router_id=state.config.router_id,
        slo_class=slo_class,
        due_in_ms=due_in_ms,
        work_tokens=group.work_tokens,
        blocks=group.blocks,
    )
    state.do(Enqueue(entry, state.config.queue_capacity))


def _has_output(session: Session) -> bool:
    return session.timeline.first_token_at is not None or session.number > 0


def _due_at(group: Group) -> float:
    session, received_at = group.session, group.session.timeline.received_at
    if _has_output(session):
        return received_at
    return due_at(session.aim, received_at) + group.later_s


def _rank(state: RouterState, group: Group) -> tuple[int, int]:
    """(class, milliseconds until due) in the fleet's queue."""
    session = group.session
    waited_s = state.now - session.timeline.received_at
    slo_class, due_in_ms = rank(state.config.policy.order, session.aim, waited_s)
    if group.is_promoted:
        return int(SloClass.INTERACTIVE), 0
    if _has_output(session):
        return slo_class, min(0, due_in_ms)
    return slo_class, due_in_ms + round(group.later_s * 1000)


def put_behind(state: RouterState, group: Group, later_s: float) -> None:
    """Move it to a later place: due by the SLO that the fleet aims at now, plus `later_s`.

    A place in the queue moves forward only, so the group is queued again. The prediction was for the old
    place.
    """
    group.later_s = later_s
    group.session.predicted = None
    state.do(Dequeue(group.key))
    state.move(group, Phase.NEW)
    enqueue(state, group)


def strand(state: RouterState, group: Group) -> None:
    """It is in no queue; the chores put it back."""
    state.move(group, Phase.STRANDED)
    if group.stranded_at is None:
        group.stranded_at = state.now


def on_granted(state: RouterState, grant: Granted) -> None:
    """Pick a decode worker and ask for its blocks."""
    group = state.groups.get(grant.request_key)
    if group is None:
        give_back(state, grant)  # it ended while the grant was on its way
    elif group.phase is Phase.ENQUEUEING:
        group.early_grant = grant
    elif group.phase is Phase.WAITING:
        take_grant(state, group, grant)


def give_back(state: RouterState, grant: Granted) -> None:
    """What a grant holds is returned, and its request leaves the queue."""
    state.do(ReleaseCredit(grant.request_key, grant.worker_key))
    state.do(ReleaseLease(grant.request_key, grant.decode_key))
    state.do(Dequeue(grant.request_key))


def take_grant(state: RouterState, group: Group, grant: Granted) -> None:
    """Turn a grant into a lease, or give it back.

    The lease is asked of the best decode worker, and should that have no room for it, of the one where the
    grant holds some.
    """
    worker = state.fleet.workers.get(grant.worker_key)
    choice = None if worker is None or worker.draining else choose_decoder(state, group, worker)
    if choice is None:
        give_back(state, grant)
        strand(state, group)
        return
    group.prefill_key, group.decode_key = grant.worker_key, choice.worker_key
    group.held_key = grant.decode_key
    state.move(group, Phase.SETTLING)
    # Each once, in this order.
    decoders = dict.fromkeys((choice.worker_key, grant.decode_key))
    state.do(Settle(group.key, grant.worker_key, tuple(_room_for(state, group, key) for key in decoders)))


def _room_for(state: RouterState, group: Group, worker_key: str) -> DecodeRoom:
    """A decode worker's capacity; none where it takes nothing new."""
    worker = state.fleet.workers.get(worker_key)
    if worker is None or worker.draining:
        return DecodeRoom(worker_key, 0, 0)
    return decode_room(state, worker, group.session.aim.pace_ms)


def on_settled(
    state: RouterState, request_key: str, prefill_key: str, decode_key: str, outcome: Settled
) -> Group | None:
    """The group that may be dispatched now, if the lease was made and is still wanted."""
    group = state.groups.get(request_key)
    if group is None or group.phase is not Phase.SETTLING:
        if outcome is Settled.OK:
            state.do(ReleaseCredit(request_key, prefill_key))
            state.do(ReleaseLease(request_key, decode_key))
        return None
    if outcome is Settled.OK:
        group.credit_on, group.lease_on = prefill_key, decode_key
        group.decode_key = decode_key
        return group
    if outcome is Settled.NO_ROOM:
        state.move(group, Phase.WAITING)
        assert group.decode_key is not None, "a grant is settled for a decode worker"
        group.avoided |= {group.decode_key}
    else:
        enqueue(state, group)
    group.prefill_key = group.decode_key = None
    return None


def release(state: RouterState, group: Group) -> None:
    """Return what the group holds of the store, once."""
    release_credit(state, group)
    if group.lease_on is not None:
        state.do(ReleaseLease(group.key, group.lease_on))
        group.lease_on = None
        state.grants_wanted = True


def release_credit(state: RouterState, group: Group) -> None:
    """The prompt is computed, or the attempt over."""
    if group.credit_on is not None:
        state.do(ReleaseCredit(group.key, group.credit_on))
        group.credit_on = None
        state.grants_wanted = True
