"""A quote: what a request would be promised now, without sending it.

It is judged as admission would judge it, behind everything that waits, and takes the time of no worker. Like
every decision it depends on when it is made, so it is an event of the core: a replay makes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.core.actions import Promise, Reject, TellQuoted
from router.core.admission.newcomers import (
    check_possible,
    class_wait_s,
    judge_newcomer,
    with_most_cached,
    would_come_back_in_s,
)
from router.core.admission.promising import NO_HITS, Judgement
from router.core.capacity.prefixes import held_by_all
from router.core.events import QuoteAsked
from router.core.session.awaiting import no_worker
from router.core.state import RouterState
from router.errors import Refused, RouterError
from scheduling.admission.admission import Verdict, rather_late
from scheduling.admission.prediction import QueueAhead, RequestCost
from scheduling.memory.reservation import blocks_needed
from scheduling.ordering import due_at
from scheduling.request import Slo


def on_quote_asked(state: RouterState, event: QuoteAsked) -> None:
    """Answer a quote at once: the listener gets `TellQuoted` or `Reject`."""
    try:
        state.do(_quoted(state, event))
    except RouterError as error:
        error.__traceback__ = None  # it would keep the frames above alive, which hold the error: a cycle
        state.do(Reject(event.listener, error))


def _quoted(state: RouterState, event: QuoteAsked) -> TellQuoted:
    if not state.fleet.serves():
        raise no_worker()
    prompt, n, slo = event.prompt_tokens, event.num_choices, event.slo
    request = RequestCost(
        prompt, 0, blocks_needed(prompt, event.max_tokens, n, state.fleet.block_size), n, event.waited_s
    )
    ahead = QueueAhead(event.waiting_tokens, event.waiting)
    judgement = judge_quote(state, request, slo, ahead, event.prefix_hits)
    decision = rather_late(slo, judgement.decision)
    promise = Promise(
        predicted_ttft_ms=decision.ttft_s * 1000,
        predicted_tpot_ms=decision.tpot_s * 1000,
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        at_risk=decision.verdict is Verdict.AT_RISK,
        itl_ms=slo.itl_ms,
        predicted_itl_ms=decision.itl_s * 1000,
    )
    refused = None
    if decision.verdict is Verdict.REFUSED:
        refused = Refused(decision, would_come_back_in_s(state, judgement, request, slo))
    return TellQuoted(event.listener, decision.verdict, promise, prompt, refused)


def judge_quote(
    state: RouterState, request: RequestCost, slo: Slo, ahead: QueueAhead, hits: Mapping[str, int] = NO_HITS
) -> Judgement:
    """Judge a request that is not sent; raises RouterError as sending it would."""
    check_possible(state, with_most_cached(state, request, hits), slo)
    request = replace(request, cached_tokens=held_by_all(state, hits))
    harm_s = class_wait_s(state, slo)
    return judge_newcomer(
        state, request, slo, due_at(slo, state.now), ahead, hits, waits=False, harm_s=harm_s
    )
