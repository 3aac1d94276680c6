"""Sends a leased group to its workers."""

from __future__ import annotations

from dataclasses import replace

from router.core.actions import SendDecode, SendPrefill, SendReceive
from router.core.capacity.fleet import Worker
from router.core.queue.queue import enqueue
from router.core.session.session import Choice, Group, Phase, Session
from router.core.state import RouterState
from scheduling.request import Fence, Path, ReceiveKind, SamplingParams, SequenceSpec, SloClass


def dispatch(state: RouterState, group: Group) -> None:
    """Send the next attempt, or queue the group again if a worker was lost or began to drain meanwhile."""
    prefill = state.fleet.workers.get(group.prefill_key or "")
    decode = state.fleet.workers.get(group.decode_key or "")
    if prefill is None or decode is None or prefill.draining or decode.draining:
        state.release(group)
        enqueue(state, group)
        group.prefill_key = group.decode_key = None
        return
    session = group.session
    group.stranded_at, group.decode_reported = None, False
    _begin_attempt(state, group, prefill, decode, state.next_handle())
    if session.timeline.dispatched_at is None:
        session.timeline.dispatched_at = state.now
        session.path = Path.AGGREGATED if prefill is decode else Path.DISAGGREGATED
    _pay_batch(state, session.slo.slo_class, group.work_tokens)
    state.fleet.send(prefill, group.work_tokens)
    if prefill is decode:
        state.actions.append(SendDecode(decode.key, spec_of(state.config.router_id, group, None, decode)))
        return
    spec = spec_of(state.config.router_id, group, prefill, decode)
    state.actions.append(SendReceive(decode.key, spec, prefill.facts.address))
    state.actions.append(SendPrefill(prefill.key, spec))


def take_over(state: RouterState, group: Group, source: Worker, target: Worker, handle: int) -> None:
    """Send the next attempt of a group that the source has stopped, and whose blocks it offers."""
    group.prefill_key, group.decode_key = source.key, target.key
    _begin_attempt(state, group, source, target, handle)
    spec = spec_of(state.config.router_id, group, source, target)
    state.actions.append(SendReceive(target.key, spec, source.facts.address, ReceiveKind.STOPPED))


def _begin_attempt(state: RouterState, group: Group, source: Worker, target: Worker, handle: int) -> None:
    session = group.session
    state.move(group, Phase.RUNNING)
    group.handle, group.attempt, group.sent_session = handle, group.attempt + 1, session.number
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


def spec_of(router_id: str, group: Group, source: Worker | None, target: Worker) -> SequenceSpec:
    """Return what both workers are told to run."""
    session = group.session
    fence = Fence(
        tenant=session.tenant,
        request_id=session.request_id,
        session=session.number,
        attempt=group.attempt,
        choice=group.choices[0].index,
        source_incarnation=source.facts.incarnation if source else "",
        target_incarnation=target.facts.incarnation,
        router_id=router_id,
    )
    return SequenceSpec(
        handle=group.handle,
        fence=fence,
        prompt_token_ids=session.prompt_token_ids,
        output_token_ids=group.output_token_ids,
        choices=tuple(choice.index for choice in group.choices),
        sampling=_sampling(session, group.num_seqs),
        stop=session.stop,
        cache_salt=cache_salt(session.tenant),
        tpot_ms=session.aim.tpot_ms,
        itl_ms=session.aim.itl_ms,
    )


def cache_salt(tenant: str) -> bytes:
    """Return the tenant's own salt: tenants share no cached blocks, since the time of a first token would
    reveal what others ask.
    """
    return tenant.encode()


def pre_copy_spec(spec: SequenceSpec, session: Session, choice: Choice, num_tokens: int) -> SequenceSpec:
    """Return the spec of the first tokens of one choice, whose blocks are copied while it runs on."""
    return replace(
        spec,
        fence=replace(spec.fence, choice=choice.index),
        prompt_token_ids=(*session.prompt_token_ids, *choice.token_ids)[:num_tokens],
        output_token_ids=(),
        choices=(choice.index,),
        sampling=replace(spec.sampling, n=1),
    )


def _sampling(session: Session, num_choices: int) -> SamplingParams:
    asked = session.sampling
    if asked.prompt_logprobs is not None and not session.lacks_prompt_logprobs:
        asked = replace(asked, prompt_logprobs=None)
    return asked if asked.n == num_choices else replace(asked, n=num_choices)
