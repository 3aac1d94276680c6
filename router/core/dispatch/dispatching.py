"""A leased group goes to its workers."""

from __future__ import annotations

from dataclasses import replace

from router.core.actions import SendDecode, SendPrefill, SendReceive
from router.core.admission.shedding import pay_batch
from router.core.capacity.fleet import PREFILL, Worker
from router.core.queue.granting import choose_decoder
from router.core.queue.queueing import enqueue, release
from router.core.session.session import Choice, Group, Phase, Session
from router.core.state import RouterState
from scheduling.request import Fence, Path, ReceiveKind, SamplingParams, SequenceSpec


def dispatch(state: RouterState, group: Group) -> None:
    """Send the next attempt; if a worker was lost or began to drain meanwhile, back to the queue."""
    prefill = state.fleet.workers.get(group.prefill_key or "")
    decode = state.fleet.workers.get(group.decode_key or "")
    if prefill is None or decode is None or prefill.draining or decode.draining:
        release(state, group)
        enqueue(state, group)
        group.prefill_key = group.decode_key = None
        return
    session = group.session
    state.move(group, Phase.RUNNING)
    group.stranded_at = None
    group.handle, group.attempt, group.sent_as = state.next_handle(), group.attempt + 1, session.number
    group.decode_reported = False
    session.attempts = max(session.attempts, group.attempt - group.num_copies)
    if session.timeline.dispatched_at is None:
        session.timeline.dispatched_at = state.now
        session.path = Path.AGGREGATED if prefill is decode else Path.DISAGGREGATED
    prefill.groups[group.handle] = decode.groups[group.handle] = group
    pay_batch(state, session.slo.slo_class, group.work_tokens)
    decode.take(group)
    state.fleet.send(prefill, group.work_tokens)
    _send(state, group, prefill, decode)


def take_over(state: RouterState, group: Group, source: Worker, target: Worker, handle: int) -> None:
    """The next attempt of what the source has stopped; it offers the group's blocks under this handle."""
    state.move(group, Phase.RUNNING)
    group.handle, group.attempt, group.sent_as = handle, group.attempt + 1, group.session.number
    group.prefill_key, group.decode_key = source.key, target.key
    group.session.attempts = max(group.session.attempts, group.attempt - group.num_copies)
    source.groups[handle] = target.groups[handle] = group
    target.take(group)
    spec = spec_of(state, group, source, target)
    state.do(SendReceive(target.key, spec, source.facts.address, ReceiveKind.STOPPED))


def ahead_of(
    state: RouterState,
    group: Group,
    choice: Choice,
    source: Worker,
    target: Worker,
    handle: int,
    num_tokens: int,
) -> SequenceSpec:
    """The first tokens of one choice, whose blocks are to be copied while it runs on."""
    spec = spec_of(state, group, source, target)
    tokens = (*group.session.prompt_token_ids, *choice.token_ids)[:num_tokens]
    return replace(
        spec,
        handle=handle,
        fence=replace(spec.fence, choice=choice.index),
        prompt_token_ids=tokens,
        output_token_ids=(),
        choices=(choice.index,),
        sampling=replace(spec.sampling, n=1),
    )


def _send(state: RouterState, group: Group, prefill: Worker, decode: Worker) -> None:
    if prefill is decode:
        state.do(SendDecode(decode.key, spec_of(state, group, None, decode)))
        return
    spec = spec_of(state, group, prefill, decode)
    state.do(SendReceive(decode.key, spec, prefill.facts.address))
    state.do(SendPrefill(prefill.key, spec))


def spec_of(state: RouterState, group: Group, source: Worker | None, target: Worker) -> SequenceSpec:
    """As both workers are told to run it."""
    session = group.session
    fence = Fence(
        tenant=session.tenant,
        request_id=session.request_id,
        session=session.number,
        attempt=group.attempt,
        choice=group.choices[0].index,
        source_incarnation=source.facts.incarnation if source else "",
        target_incarnation=target.facts.incarnation,
        router_id=state.config.router_id,
    )
    return SequenceSpec(
        handle=group.handle,
        fence=fence,
        prompt_token_ids=session.prompt_token_ids,
        output_token_ids=group.output_token_ids,
        choices=tuple(choice.index for choice in group.choices),
        sampling=_sampling(session, len(group.choices)),
        stop=session.stop,
        cache_salt=cache_salt(session.tenant),
        tpot_ms=session.aim.tpot_ms,
        itl_ms=session.aim.itl_ms,
    )


def _sampling(session: Session, num_choices: int) -> SamplingParams:
    asked = session.sampling
    if asked.prompt_logprobs is not None and not session.lacks_prompt_logprobs:
        asked = replace(asked, prompt_logprobs=None)
    return asked if asked.n == num_choices else replace(asked, n=num_choices)


def cache_salt(tenant: str) -> bytes:
    """Tenants share no cached blocks, or the time of a first token would tell what others ask."""
    return tenant.encode()


def dispatch_unleased(state: RouterState, group: Group) -> None:
    """Place a group by this router's own picture, while the store is away.

    Only for what clients already hear: workers have the last word on memory, so a missing lease risks another
    attempt, where waiting for the store would stop a stream.
    """
    computing = sorted(state.fleet.computing, key=lambda w: (w.key in group.avoided, w.bound_tokens, w.key))
    if computing and computing[0].facts.role == PREFILL:
        computing = computing[:1]
    for prefill in computing:
        choice = choose_decoder(state, group, prefill)
        if choice is not None:
            group.prefill_key, group.decode_key = prefill.key, choice.worker_key
            dispatch(state, group)
            return
