"""Groups and their places in the fleet's queue. `Session`'s module draws the phases.

new_groups     creates a session's groups
enqueue        asks the store for a place, or renews it; `admission/admit` takes in the response
put_behind     gives the place up for a later one
strand         leaves a group in no queue, until the chores enqueue it again or give it up
leave_queue    gives the place up, and an early grant with it
give_back      returns what a grant holds
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.actions import Dequeue, Enqueue, ReleaseCredit, ReleaseLease
from router.core.events import Granted
from router.core.session.session import Choice, Group, Phase, Session
from router.core.state import RouterState
from scheduling.admission.backlog import due_at, rank
from scheduling.admission.learnt import Learnt
from scheduling.memory.reservation import blocks_needed
from scheduling.request import SloClass
from state.records import QueueEntry


def most_blocks(session: Session, num_choices: int, block_size: int) -> int:
    """Return the KV blocks that so many choices can grow to; delivered tokens count as output still."""
    return blocks_needed(len(session.prompt_token_ids), session.stop.max_tokens, num_choices, block_size)


def expected_output(session: Session, learnt: Learnt) -> float:
    """Return the tokens that one choice will probably have."""
    stop = session.stop
    expected = learnt.lengths[session.slo.slo_class].expected(stop.max_tokens, ignore_eos=stop.ignore_eos)
    done = max(len(choice.token_ids) for choice in session.choices)
    return max(expected, min(1.25 * done, stop.max_tokens))


def new_groups(
    state: RouterState, session: Session, choices: Sequence[Choice], parent: Group | None = None
) -> list[Group]:
    """Create groups of these choices: a choice with output has its own, all others share one."""
    untouched = [choice for choice in choices if not choice.token_ids]
    parts = [[choice] for choice in choices if choice.token_ids] + ([untouched] if untouched else [])
    expected = expected_output(session, state.learnt) if parts else 0.0
    groups = []
    for part in parts:
        group = Group(
            key=session.group_key(part[0].index),
            session=session,
            choices=part,
            blocks=_leased_blocks(state, session, len(part), expected),
            work_tokens=len(session.prompt_token_ids) + len(part[0].token_ids),
            expected_tokens=round(expected) * len(part),
        )
        if parent is not None:
            _inherit(group, parent)
        for choice in part:
            choice.group = group
        session.groups.append(group)
        state.groups[group.key] = group
        groups.append(group)
    return groups


def _leased_blocks(state: RouterState, session: Session, num_choices: int, expected: float) -> int:
    """Return the blocks to lease: what the choices can grow to, or will by what such outputs were.

    Most sequences are far from their end, so a sum of expected ends is more than what is held at any moment;
    where it is not, the worker preempts.
    """
    if state.config.policy.reserves_maximum:
        return most_blocks(session, num_choices, state.fleet.block_size)
    output = max(1, round(expected))
    return blocks_needed(len(session.prompt_token_ids), output, num_choices, state.fleet.block_size)


def _inherit(group: Group, parent: Group) -> None:
    """Carry over what happened to the group that this one was split from."""
    group.attempt, group.num_copies = parent.attempt, parent.num_copies
    group.failures, group.failed_with = parent.failures, parent.failed_with
    group.failed_elsewhere, group.excused_failures = parent.failed_elsewhere, parent.excused_failures
    group.lost_workers, group.failed_senders = parent.lost_workers, parent.failed_senders
    group.avoided, group.migrated_at = parent.avoided, parent.migrated_at


def enqueue(state: RouterState, group: Group) -> None:
    """Ask for a place, or move the place that the group has. A group with output goes first."""
    session = group.session
    received_at, has_output = session.timeline.received_at, _has_output(session)
    if group.phase is not Phase.WAITING:
        group.due_at = received_at if has_output else due_at(session.aim, received_at) + group.delay_s
        state.move(group, Phase.ENQUEUEING)
    group.asked_at = state.now
    state.waiting.asked(group)
    slo_class, due_in_ms = rank(state.config.policy.order, session.aim, state.now - received_at)
    if group.is_promoted:
        slo_class, due_in_ms = int(SloClass.INTERACTIVE), 0
    elif has_output:
        due_in_ms = min(0, due_in_ms)
    else:
        due_in_ms += round(group.delay_s * 1000)
    entry = QueueEntry(
        request_key=group.key,
        router_id=state.config.router_id,
        slo_class=slo_class,
        due_in_ms=due_in_ms,
        work_tokens=group.work_tokens,
        blocks=group.blocks,
    )
    state.actions.append(Enqueue(entry, state.config.queue_capacity))


def _has_output(session: Session) -> bool:
    return session.timeline.first_token_at is not None or session.number > 0


def put_behind(state: RouterState, group: Group, delay_s: float) -> None:
    """Move a group to a later place: due by the SLO that the fleet aims at now, plus `delay_s`.

    A place in the queue only moves forward, so the group is queued again. The prediction was for the old
    place.
    """
    group.delay_s = delay_s
    group.session.predicted = None
    state.actions.append(Dequeue(group.key))
    state.move(group, Phase.NEW)
    enqueue(state, group)


def strand(state: RouterState, group: Group) -> None:
    """Leave a group in no queue; the chores put it back."""
    state.move(group, Phase.STRANDED)
    if group.stranded_at is None:
        group.stranded_at = state.now


def leave_queue(state: RouterState, group: Group) -> None:
    """Take a group out of the queue, and return an early grant."""
    if group.early_grant is None:
        state.actions.append(Dequeue(group.key))
    else:
        give_back(state, group.early_grant)
        group.early_grant = None


def give_back(state: RouterState, grant: Granted) -> None:
    """Return what a grant holds, and take its request out of the queue."""
    state.actions.append(ReleaseCredit(grant.request_key, grant.worker_key))
    state.actions.append(ReleaseLease(grant.request_key, grant.decode_key))
    state.actions.append(Dequeue(grant.request_key))
