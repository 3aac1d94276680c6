"""What the core predicts and promises: its picture of the fleet as the views that `scheduling` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from router.core.actions import Promise, TellAccepted
from router.core.capacity.fleet_capacity import TPOT_SCALE, is_cut
from router.core.capacity.prefixes import cached_tokens, held_by_all
from router.core.dispatch.paths import along_paths
from router.core.session.session import Group, Session
from router.core.state import RouterState
from scheduling.admission.admission import (
    Decision,
    Spread,
    Verdict,
    at_most,
    at_rest,
    decide,
    unpromised,
)
from scheduling.admission.backlog import Pace
from scheduling.admission.prediction import Capacity, Prediction, QueueAhead, RequestCost, predict
from scheduling.request import Slo
from scheduling.value import value

NO_HITS: Mapping[str, int] = {}


@value
class Judgement:
    """A decision with what it was made on."""

    decision: Decision
    predicted: Prediction
    work_ahead_tokens: int
    at_rest: bool
    """The fleet is idle, and nobody waits."""


@value
class Foreseen:
    """What a request would find, with how far such predictions are off."""

    predicted: Prediction
    work_ahead_tokens: int
    capacity: Capacity
    ttft: Spread
    tpot: Spread
    at_rest: bool

    def judged(self, slo: Slo, harm_s: float = 0.0) -> Judgement:
        """The decision; `harm_s` is by how much it would make others late."""
        decision = decide(slo, self.predicted, self.ttft, self.tpot, harm_s)
        return Judgement(decision, self.predicted, self.work_ahead_tokens, self.at_rest)


def judge(
    state: RouterState,
    request: RequestCost,
    slo: Slo,
    due_at: float,
    ahead: QueueAhead,
    hits: Mapping[str, int] = NO_HITS,
    *,
    waits: bool = True,
    harm_s: float = 0.0,
) -> Judgement:
    """Predict a request with this much before it in the queue, and decide on it.

    `hits` are the blocks of its prompt that the prefix directory knows of, by worker.

    `due_at` is what the queue orders it by, `waits` whether it is in the queue already. `harm_s` comes on top
    of what it would do to those behind it.
    """
    foreseen = foresee(state, request, slo, ahead, hits)
    if not state.config.policy.promises:
        judgement = foreseen.judged(slo)
        return replace(judgement, decision=unpromised(judgement.decision))
    harm_s = max(harm_s, _harm_s(state, request, slo, due_at, ahead, foreseen, waits=waits))
    return foreseen.judged(slo, harm_s)


def foresee(
    state: RouterState, request: RequestCost, slo: Slo, ahead: QueueAhead, hits: Mapping[str, int]
) -> Foreseen:
    """Predict a request with this much before it in the queue."""
    capacity = state.capacity.capacity(slo.pace_ms)
    work_ahead = ahead.tokens + state.fleet.bound_tokens
    predicted = predict(request, QueueAhead(work_ahead, ahead.requests), capacity, load_of(state, capacity))
    predicted = along_paths(state, request, ahead, predicted, cached_tokens(state, hits, ahead))
    fixed_s = state.learnt.fixed_s(predicted.ttft_s - predicted.wait_s, state.now)
    predicted = replace(predicted, ttft_s=predicted.ttft_s + fixed_s, fixed_s=fixed_s)
    # A wait for a decode slot is work ahead as well.
    work_ahead = max(work_ahead, round(predicted.wait_s * capacity.prefill_rate))
    ttft = state.learnt.ttft_spread(predicted, state.now)
    tpot = Spread(*state.learnt.tpot.quantiles(predicted.batch_size * TPOT_SCALE, state.now))
    if slo.tpot_ms is not None and is_cut(state, capacity.roomiest.cost):
        # A ratio times what it was divided by may be more by a rounding, and would refuse what is kept.
        kept_s = max(predicted.itl_s, slo.tpot_ms / 1000 * (1 - 1e-9))
        tpot = at_most(tpot, kept_s / predicted.tpot_s)
    is_at_rest = ahead.requests == 0 and state.fleet.idle
    if is_at_rest:
        ttft, tpot = at_rest(ttft), at_rest(tpot)
    return Foreseen(predicted, work_ahead, capacity, ttft, tpot, is_at_rest)


def _harm_s(
    state: RouterState,
    request: RequestCost,
    slo: Slo,
    due_at: float,
    ahead: QueueAhead,
    foreseen: Foreseen,
    *,
    waits: bool,
) -> float:
    """By how much it would make others late that wait behind it."""
    if not slo.is_stated or len(state.waiting) <= waits:
        return 0.0
    pace = Pace(
        now=state.now,
        start_tokens=state.fleet.bound_tokens,
        rate=foreseen.capacity.prefill_rate,
        stretch=foreseen.ttft.q90,
        scale=_scale(state, slo, due_at, request.prompt_tokens if waits else 0, ahead),
    )
    return state.waiting.backlog.harm_s(slo.slo_class, due_at, request.prompt_tokens, pace, waits=waits)


def load_of(state: RouterState, capacity: Capacity) -> float:
    """Prompt tokens admitted per second of late, by what the fleet computes; 1 at most."""
    return min(1.0, state.learnt.admitted.rate(state.now) / capacity.prefill_rate)


def _scale(state: RouterState, slo: Slo, due_at: float, own_tokens: int, ahead: QueueAhead) -> float:
    """The fleet's waiting tokens per token of ours: other routers' are known by the work ahead alone."""
    ours = state.waiting.backlog.tokens_before(slo.slo_class, due_at) - own_tokens
    return max(1.0, ahead.tokens / ours) if ours > 0 else 1.0


def request_cost(state: RouterState, session: Session, group: Group) -> RequestCost:
    """What a group brings along, wherever it goes."""
    cached = held_by_all(state, session.prefix_hits)
    return RequestCost(group.work_tokens, cached, group.blocks, group.num_seqs)


def promise_of(session: Session) -> Promise:
    """What the client was told."""
    decision = session.decision
    return Promise(
        predicted_ttft_ms=decision.ttft_s * 1000 if decision else 0.0,
        predicted_tpot_ms=decision.tpot_s * 1000 if decision else 0.0,
        ttft_ms=session.slo.ttft_ms,
        tpot_ms=session.slo.tpot_ms,
        at_risk=decision is not None and decision.verdict is Verdict.AT_RISK,
        itl_ms=session.slo.itl_ms,
        predicted_itl_ms=decision.itl_s * 1000 if decision else 0.0,
    )


def tell_accepted(state: RouterState, session: Session, only: int | None = None) -> None:
    """The first event of every stream: to all calls, or the `only` one."""
    promise, seed, num_prompt = promise_of(session), session.sampling.seed, len(session.prompt_token_ids)
    weights = state.fleet.fingerprint
    for listener in session.listeners:
        if only in (None, listener):
            state.do(TellAccepted(listener, session.request_id, promise, seed, num_prompt, weights))
