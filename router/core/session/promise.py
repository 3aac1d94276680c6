"""The promise a client is given, and the first event of every stream, which carries it."""

from __future__ import annotations

from router.core.actions import Promise, TellAccepted
from router.core.session.session import Session
from router.core.state import RouterState
from scheduling.admission.admission import Decision, Verdict
from scheduling.request import Slo


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
    promise = promise_of(session.slo, session.decision)
    seed, num_prompt = session.sampling.seed, len(session.prompt_token_ids)
    weights = state.fleet.fingerprint
    for listener in session.listeners:
        if only in (None, listener):
            accepted = TellAccepted(listener, session.request_id, promise, seed, num_prompt, weights)
            state.actions.append(accepted)
