"""A quote: what a request would be promised now, without sending it.

It is judged as admission would judge it, behind everything that waits, and takes the time of no worker. Like
every decision it depends on when it is made, so it is an event of the core: a replay makes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.core.actions import Reject, TellQuoted
from router.core.admission.admit import no_worker
from router.core.admission.judge import (
    Judged,
    Judgement,
    cached_everywhere,
    check_slo,
    class_wait_s,
    judge_newcomer,
    served_at,
)
from router.core.events import QuoteAsked
from router.core.queue.queue import promise_of
from router.core.state import RouterState
from router.errors import Refused, RouterError
from scheduling.admission.admission import Verdict, rather_late, retry_after_s
from scheduling.admission.backlog import due_at
from scheduling.admission.prediction import QueueAhead, RequestCost
from scheduling.memory.reservation import blocks_needed
from scheduling.request import Slo


def on_quote_asked(state: RouterState, event: QuoteAsked) -> None:
    """Quote at once: the listener gets `TellQuoted` or `Reject`."""
    try:
        state.actions.append(_quoted(state, event))
    except RouterError as error:
        error.__traceback__ = None  # it would keep the frames above alive, which hold the error: a cycle
        state.actions.append(Reject(event.listener, error))


def _quoted(state: RouterState, event: QuoteAsked) -> TellQuoted:
    if not state.fleet.serves:
        raise no_worker()
    prompt, n, slo = event.prompt_tokens, event.num_choices, event.slo
    blocks = blocks_needed(prompt, event.max_tokens, n, state.fleet.block_size)
    cost = RequestCost(prompt, 0, blocks, n, event.waited_s)
    ahead = QueueAhead(event.waiting_tokens, event.waiting)
    request, judgement = judge_quote(state, cost, slo, ahead, event.prefix_hits)
    decision = rather_late(slo, judgement.decision)
    refused = None
    if decision.verdict is Verdict.REFUSED:
        # It does not move the times that other refusals get.
        wait_s = retry_after_s(served_at(state, request, judgement), state.now, "")
        refused = Refused(decision, wait_s)
    return TellQuoted(event.listener, decision.verdict, promise_of(slo, decision), prompt, refused)


def judge_quote(
    state: RouterState, cost: RequestCost, slo: Slo, ahead: QueueAhead, hits: Mapping[str, int]
) -> tuple[Judged, Judgement]:
    """Judge a request that is not sent; raise RouterError as sending it would."""
    check_slo(state, cost, slo, hits)
    cost = replace(cost, cached_tokens=cached_everywhere(state, hits))
    held_back_s = class_wait_s(state, slo)
    request = Judged(cost, slo, due_at(slo, state.now), ahead, hits, waits=False)
    return request, judge_newcomer(state, request, held_back_s)
