"""What a request would be promised now, without sending it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router.actions import Promise
from router.errors import Reason, SloRefused, Unavailable
from router.intake import Checked
from router.shell import Shell
from scheduling.admission import MIN_RETRY_S, Verdict
from scheduling.prediction import Ahead, Ask
from scheduling.reservation import blocks_needed
from state.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Quoted:
    """An answer to `Quote`; `refused` is what Generate would have been told."""

    verdict: Verdict
    promise: Promise
    prompt_tokens: int
    refused: SloRefused | None


async def quote(shell: Shell, checked: Checked, hits: Mapping[str, int]) -> Quoted:
    """Judge as admission would, behind everything that waits: a quote errs to the late side.

    `hits` are the blocks of the prompt that workers hold.
    """
    facts = shell.discovery.facts
    if facts is None or not shell.core.book.fleet.serves():
        raise Unavailable(Reason.NO_WORKER, "no decode worker is connected")
    try:
        queue = await shell.store.queue_status()
    except StoreUnavailable as error:
        raise Unavailable(
            Reason.REDIS_AWAY, f"Redis, which holds the fleet's queue, does not answer: {error.reason}"
        ) from error
    n, prompt_tokens = checked.sampling.n, len(checked.prompt_token_ids)
    blocks = blocks_needed(prompt_tokens, checked.stop.max_tokens, n, facts.block_size)
    ask, ahead = Ask(prompt_tokens, 0, blocks, n), Ahead(queue.waiting_tokens, queue.waiting)
    decision = shell.core.quote(ask, checked.slo, ahead, shell.now(), hits).decision
    at_risk = decision.verdict is Verdict.AT_RISK
    slo = checked.slo
    predicted_ms = decision.ttft_s * 1000, decision.tpot_s * 1000
    itl_ms = decision.itl_s * 1000
    promise = Promise(*predicted_ms, slo.ttft_ms, slo.tpot_ms, at_risk, slo.itl_ms, itl_ms)
    refused = None
    if decision.verdict is Verdict.REFUSED:
        wait_s = max(MIN_RETRY_S, decision.ttft_s - (checked.slo.ttft_ms or 0) / 1000)
        refused = SloRefused(decision, wait_s)
    return Quoted(decision.verdict, promise, prompt_tokens, refused)
