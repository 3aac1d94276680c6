"""Groups: their phases, their places in the fleet's queue, what they hold of the store, and their attempts.

`Session`'s module draws the phases.

set_phase      takes a group to another phase
set_decision   what was decided on a session; `tell_accepted` tells its calls
release        returns all that a group holds
new_groups     creates a session's groups
rename         lets a group go on under a name that no call of the store has had yet
enqueue        asks the store for a place, or renews it; `admit` takes in the response
put_behind     gives the place up for a later one
strand         leaves a group in no queue, until the chores enqueue it again or give it up
leave_queue    gives the place up, and an early grant with it
give_back      returns what a grant holds
dispatch       sends a leased group to its workers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from router.core.model.actions import (
    Dequeue,
    Enqueue,
    Offer,
    Promise,
    ReleaseCredit,
    ReleaseLease,
    SendDecode,
    SendPrefill,
    SendReceive,
    TellAccepted,
)
from router.core.model.events import Granted
from router.core.model.fleet import Worker
from router.core.model.session import IN_QUEUE, Choice, Group, Phase, Session
from router.core.model.state import RouterState
from runtime.state.records import CLASS_SCORE, QueueEntry
from scheduling.admission.admission import Decision, Verdict
from scheduling.admission.backlog import due_at, rank
from scheduling.admission.learnt import Learnt
from scheduling.admission.shares import share_of, takes_turns
from scheduling.policies.policy import Order
from scheduling.prediction import blocks_needed
from scheduling.request import Fence, Path, PrefixSource, SamplingParams, SequenceSpec, Slo, SloClass


def most_blocks(session: Session, num_choices: int, block_size: int) -> int:
    """Return how many KV blocks so many choices can need, counting delivered tokens as output."""
    request = session.request
    return blocks_needed(len(request.prompt_token_ids), request.stop.max_tokens, num_choices, block_size)


def expected_output(session: Session, learnt: Learnt) -> float:
    """Return the tokens that one choice will probably have."""
    slo, stop = session.request.slo, session.request.stop
    expected = learnt.lengths[slo.slo_class].expected(stop.max_tokens, ignore_eos=stop.ignore_eos)
    done = max(len(choice.token_ids) for choice in session.choices)
    return max(expected, min(1.25 * done, stop.max_tokens))


def group_key(session: Session, first_choice: int) -> str:
    """Return the name of a group without its number; escaped, so that no two groups share a name."""
    suffix = f"#{first_choice}" if first_choice else ""
    return f"{request_name(session.request.tenant, session.request.request_id)}/{session.number}{suffix}"


def request_name(tenant: str, request_id: str) -> str:
    """Return the name of a request, as `request_of` finds it."""
    return f"{quote(tenant, safe='')}/{quote(request_id, safe='')}"


def request_of(request_key: str) -> str:
    """Return the part of a group's name that all groups and sessions of its request have, at any router."""
    return request_key.rpartition("/")[0]


def first_choice_of(request_key: str) -> int:
    """Return the first choice of the group with this name."""
    return int(request_key.rpartition("/")[2].partition("~")[0].partition("#")[2] or 0)


def _new_name(state: RouterState, session: Session, first_choice: int) -> str:
    """Return a name in the store that is never used again, here or at another router.

    A call of the store that failed may be executed at any later time. It then finds nothing under its name,
    and leaves what a later attempt, or the same request id used again, holds under another one.
    """
    key, incarnation = group_key(session, first_choice), state.config.router_incarnation
    return f"{key}~{incarnation}.{next(state.names)}" if incarnation else key


def rename(state: RouterState, group: Group) -> None:
    """Let a group go on under another name: what it had under the old one is given back."""
    if group.early_grant is not None:
        give_back(state, group.early_grant)
        group.early_grant = None
    set_phase(state, group, Phase.NEW)
    del state.groups[group.key]
    group.key = _new_name(state, group.session, group.choices[0].index)
    state.groups[group.key] = group


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
            key=_new_name(state, session, part[0].index),
            session=session,
            choices=part,
            blocks=_leased_blocks(state, session, len(part), expected),
            work_tokens=len(session.request.prompt_token_ids) + len(part[0].token_ids),
            num_seqs=len(part),
            seat_share=share_of(len(part), state.config.weights.of(session.request.tenant)),
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
    return blocks_needed(len(session.request.prompt_token_ids), output, num_choices, state.fleet.block_size)


def _inherit(group: Group, parent: Group) -> None:
    """Carry over what happened to the group that this one was split from."""
    group.attempt, group.num_copies = parent.attempt, parent.num_copies
    group.failures, group.failed_with = parent.failures, parent.failed_with
    group.failed_elsewhere, group.excused_failures = parent.failed_elsewhere, parent.excused_failures
    group.lost_workers, group.failed_handoffs = parent.lost_workers, parent.failed_handoffs
    group.failed_workers, group.avoided = parent.failed_workers, parent.avoided
    group.migrated_at = parent.migrated_at


def enqueue(state: RouterState, group: Group, offer: Offer | None = None) -> None:
    """Ask for a place, or move the place that the group has. A group with output goes first.

    With an `offer`, a newcomer is leased there at once if nothing waits.
    """
    session = group.session
    received_at, is_begun = session.timeline.received_at, has_output(session)
    has_place, group.asked_at = group.phase in IN_QUEUE, state.now
    order, work_s = state.config.policy.order, 0.0
    if order in {Order.DUE_AND_SHORT, Order.SHORT} and state.fleet.serves:
        work_s = group.work_tokens * state.capacity.capacity(None, state.now).quickest.token_s
    waited_s = state.now - received_at
    slo_class, due_in_ms = rank(order, session.aim, waited_s, work_s, late=group.is_relegated)
    if group.is_promoted:
        slo_class, due_in_ms = int(SloClass.INTERACTIVE), 0
    elif is_begun:
        due_in_ms = min(0, due_in_ms)
    else:
        due_in_ms += round(group.delay_s * 1000)
    if has_place:
        state.waiting.asked(group)
    else:
        group.due_at = received_at if is_begun else due_at(session.aim, received_at) + group.delay_s
        group.place = slo_class * CLASS_SCORE + round(state.now * 1000) + due_in_ms, group.key
        set_phase(state, group, Phase.ENQUEUEING)
    entry = QueueEntry(
        request_key=group.key,
        router_id=state.config.caller,
        slo_class=slo_class,
        due_in_ms=due_in_ms,
        work_tokens=group.work_tokens,
        blocks=group.blocks,
        adapter=session.request.adapter,
        seats=group.num_seqs,
        share=group.seat_share,
        takes_turns=not group.is_promoted and takes_turns(session.aim, has_output=is_begun),
    )
    state.actions.append(Enqueue(entry, state.config.queue_capacity, offer))


def has_output(session: Session) -> bool:
    """Return True if the caller has tokens, from here or, in a later session, perhaps from elsewhere."""
    return session.timeline.first_token_at is not None or session.number > 0


def set_phase(state: RouterState, group: Group, phase: Phase) -> None:
    """Take a group to another phase; nothing else sets a phase."""
    was_waiting, waits = group.phase in IN_QUEUE, phase in IN_QUEUE
    if group.phase is Phase.SETTLING:
        state.fleet.expect(group.prefill_key, -group.work_tokens)
    if phase is Phase.SETTLING:
        state.fleet.expect(group.prefill_key, group.work_tokens)
    if (group.phase is Phase.RUNNING) is not (phase is Phase.RUNNING):
        share = group.seat_share
        state.running_shares.add(group.session.request.tenant, share if phase is Phase.RUNNING else -share)
    group.phase = phase
    if waits and not was_waiting:
        state.waiting.add(group, state.now)
    elif was_waiting and not waits:
        state.waiting.remove(group)
    if phase is Phase.STRANDED:
        state.stranded[group.key] = group
    else:
        state.stranded.pop(group.key, None)


def set_decision(state: RouterState, session: Session, decision: Decision, aim: Slo) -> None:
    """Set what was decided on a session, and the SLO that the fleet aims at for it."""
    state.waiting.decide(session, decision, aim, state.now)


def put_behind(state: RouterState, group: Group, delay_s: float) -> None:
    """Move a group to a later place: due by the SLO that the fleet aims at now, plus `delay_s`.

    A place in the queue only moves forward, so the group is queued again. The prediction was for the old
    place.
    """
    group.delay_s = delay_s
    group.session.predicted = None
    state.actions.append(Dequeue(group.key))
    set_phase(state, group, Phase.NEW)
    enqueue(state, group)


def strand(state: RouterState, group: Group) -> None:
    """Leave a group in no queue; the chores put it back."""
    if group.phase is not Phase.NEW:
        rename(state, group)
    set_phase(state, group, Phase.STRANDED)
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


def release_credit(state: RouterState, group: Group) -> None:
    """Return the group's prompt credit, once: the prompt is computed, or the attempt is over."""
    if group.credit_on is not None:
        state.actions.append(ReleaseCredit(group.key, group.credit_on))
        state.fleet.unbind_prompt(group.credit_on)
        group.credit_on = None
        state.offer_due = True


def release(state: RouterState, group: Group) -> None:
    """Return all that the group holds of the store, once."""
    release_credit(state, group)
    if group.lease_on is not None:
        state.actions.append(ReleaseLease(group.key, group.lease_on))
        group.lease_on = None
        state.offer_due = True


# Attempts


def dispatch(state: RouterState, group: Group) -> None:
    """Send the next attempt, or queue the group again if a worker was lost or began to drain meanwhile."""
    prefill = state.fleet.workers.get(group.prefill_key or "")
    decode = state.fleet.workers.get(group.decode_key or "")
    if prefill is None or decode is None or prefill.draining or decode.draining:
        release(state, group)
        rename(state, group)
        enqueue(state, group)
        group.prefill_key = group.decode_key = None
        return
    session = group.session
    group.stranded_at, group.decode_reported = None, False
    begin_attempt(state, group, prefill, decode, next(state.handles))
    if session.timeline.dispatched_at is None:
        session.timeline.dispatched_at = state.now
        session.path = Path.AGGREGATED if prefill is decode else Path.DISAGGREGATED
    _pay_batch(state, session.request.slo.slo_class, group.work_tokens)
    state.fleet.send(prefill, group.work_tokens)
    source = _prefix_source(state, group, prefill)
    if prefill is decode:
        spec = spec_of(state, group, None, decode)
        state.actions.append(SendDecode(decode.key, replace(spec, prefix_source=source)))
        return
    spec = spec_of(state, group, prefill, decode)
    state.actions.append(SendReceive(decode.key, spec, prefill.facts.address))
    state.actions.append(SendPrefill(prefill.key, replace(spec, prefix_source=source)))


def _prefix_source(state: RouterState, group: Group, computing: Worker) -> PrefixSource | None:
    """Return the worker from which the one that computes a prompt is to fetch its beginning, if that pays."""
    hits = group.session.prefix_hits
    if not hits.at_peers:
        return None
    peer = hits.held_by(computing.key, state.fleet.block_size, computing.cost).peer
    source = None if peer is None else state.fleet.workers.get(peer.source)
    if peer is None or source is None or source.stalled:
        return None
    return PrefixSource(source.facts.address, source.facts.incarnation, peer.num_blocks)


def begin_attempt(state: RouterState, group: Group, source: Worker, target: Worker, handle: int) -> None:
    """Count an attempt that a source computes the prompt for, or hands over, and a target decodes."""
    session = group.session
    set_phase(state, group, Phase.RUNNING)
    group.handle, group.attempt = handle, group.attempt + 1
    group.sent_session, group.sent_at = session.number, state.now
    session.attempts = max(session.attempts, group.attempt - group.num_copies)
    source.groups[handle] = target.groups[handle] = group
    target.reserve(group)


def _pay_batch(state: RouterState, slo_class: SloClass, tokens: int) -> None:
    """Count prompt tokens that were sent; promote the first batch group once batch is owed all of it."""
    head = state.waiting.head_of(SloClass.BATCH)
    floor = state.batch_floor
    floor.dispatched(slo_class, tokens, batch_waits=head is not None)
    is_due = head is not None and head.work_tokens <= floor.owed_tokens
    if head is not None and is_due and head.phase is Phase.WAITING and not head.is_promoted:
        head.is_promoted = True
        enqueue(state, head)


def spec_of(state: RouterState, group: Group, source: Worker | None, target: Worker) -> SequenceSpec:
    """Return what both workers are told to run."""
    session, request = group.session, group.session.request
    fence = Fence(
        tenant=request.tenant,
        request_id=request.request_id,
        session=session.number,
        attempt=group.attempt,
        choice=group.choices[0].index,
        source_incarnation=source.facts.incarnation if source else "",
        target_incarnation=target.facts.incarnation,
        router_id=state.config.router_id,
        router_incarnation=state.config.router_incarnation,
        run=session.sid,
    )
    return SequenceSpec(
        handle=group.handle,
        fence=fence,
        prompt_token_ids=request.prompt_token_ids,
        # Delivered tokens; only a single choice has any.
        output_token_ids=tuple(group.choices[0].token_ids) if group.num_seqs == 1 else (),
        choices=tuple(choice.index for choice in group.choices),
        sampling=_sampling(session, group.num_seqs),
        stop=request.stop,
        cache_salt=cache_salt(request.tenant),
        tpot_ms=session.aim.tpot_ms,
        itl_ms=session.aim.itl_ms,
        adapter=request.adapter,
        session_age_seconds=state.now - session.attached_at if session.number > 0 else 0.0,
    )


def cache_salt(tenant: str) -> bytes:
    """Return the tenant's own salt: tenants share no cached blocks, since the time of a first token would
    reveal what others ask.
    """
    return tenant.encode()


def _sampling(session: Session, num_choices: int) -> SamplingParams:
    asked = session.request.sampling
    if asked.prompt_logprobs is not None and not session.lacks_prompt_logprobs:
        asked = replace(asked, prompt_logprobs=None)
    return asked if asked.n == num_choices else replace(asked, n=num_choices)


# What clients are told of the decision


def promise_of(slo: Slo, decision: Decision | None) -> Promise:
    """Return the promise that a decision makes; all predictions are 0 without a decision."""
    return Promise(
        predicted_ttft_ms=decision.ttft_s * 1000 if decision else 0.0,
        predicted_tpot_ms=decision.tpot_s * 1000 if decision else 0.0,
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        at_risk=decision is not None and decision.verdict is Verdict.AT_RISK,
        itl_ms=slo.itl_ms,
        predicted_itl_ms=decision.itl_s * 1000 if decision else 0.0,
    )


def tell_accepted(state: RouterState, session: Session, only: int | None = None) -> None:
    """Send the first event of a stream to all calls, or to the `only` one."""
    request = session.request
    promise = promise_of(request.slo, session.decision)
    seed, num_prompt = request.sampling.seed, len(request.prompt_token_ids)
    weights = state.fleet.fingerprint
    for listener in session.listeners:
        if only in (None, listener):
            accepted = TellAccepted(listener, request.request_id, promise, seed, num_prompt, weights)
            state.actions.append(accepted)
