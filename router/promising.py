"""What the core predicts and promises: its picture of the fleet as the views that `scheduling` judges."""

from __future__ import annotations

from dataclasses import dataclass

from router.actions import Promise, TellAccepted
from router.book import Book
from router.fleet import DECODE, Worker
from router.sessions import Group, Phase, Session
from scheduling.admission import (
    Decision,
    Spread,
    Verdict,
    at_rest,
    decide,
    next_virtual_finish,
    retry_after_s,
    unpromised,
)
from scheduling.ordering import Waiter, least_slack_behind
from scheduling.placement import Path
from scheduling.prediction import (
    Ahead,
    Ask,
    DecodeView,
    FleetView,
    Prediction,
    PrefillView,
    predict,
    prefill_rate,
    seq_capacity,
)
from scheduling.request import Slo, StopRules

TPOT_SCALE = 64.0
"""Ratios are bucketed by powers of two from 64 units of work on; a sequence of the batch counts as 64."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision with what it was made on."""

    decision: Decision
    predicted: Prediction
    work_ahead_tokens: int


def judge(book: Book, ask: Ask, slo: Slo, due_at: float, ahead: Ahead) -> Judgement:
    """Predict a request with this much before it in the queue, and decide on it."""
    fleet = fleet_view(book, slo.tpot_ms)
    predicted = predict(ask, ahead, fleet)
    work_ahead = ahead.tokens + sum(view.bound_tokens for view in fleet.prefill)
    ttft = Spread(*book.learnt.ttft.quantiles(work_ahead, book.now))
    tpot = Spread(*book.learnt.tpot.quantiles(predicted.batch_size * TPOT_SCALE, book.now))
    if book.fleet.idle and ahead.requests == 0:
        ttft, tpot = at_rest(ttft), at_rest(tpot)
    harm_s = _harm_s(book, slo, due_at, ask.prompt_tokens / prefill_rate(fleet.prefill))
    decision = decide(slo, predicted, ttft, tpot, harm_s)
    if not book.config.policy.promises:
        decision = unpromised(decision)
    return Judgement(decision, predicted, work_ahead)


def ask_of(book: Book, session: Session, group: Group) -> Ask:
    """What a group brings along; a prefix counts where its prompt would probably run."""
    keys = {worker.key for worker in book.fleet.computing}
    block_size = next(iter(book.fleet.workers.values())).facts.block_size
    cached = min((session.prefix_hits.get(key, 0) for key in keys), default=0) * block_size
    return Ask(group.work_tokens, cached, group.blocks, group.num_seqs)


def fleet_view(book: Book, tpot_ms: int | None) -> FleetView:
    """The fleet as a request with this TPOT would find it."""
    aggregated = book.fleet.path is Path.AGGREGATED
    prefill = tuple(_prefill_view(worker, aggregated=aggregated) for worker in book.fleet.computing)
    decode = tuple(
        decode_view_of(book, worker, seat_limit(book, worker, tpot_ms)) for worker in book.fleet.open(DECODE)
    )
    load = min(1.0, book.learnt.admitted.rate(book.now) / prefill_rate(prefill))
    return FleetView(prefill, decode, aggregated, load)


def _prefill_view(worker: Worker, *, aggregated: bool) -> PrefillView:
    decodes = min(worker.load.running, worker.facts.token_budget - 1) if aggregated else 0
    context = worker.load.context_tokens if aggregated else 0
    return PrefillView(worker.cost, worker.facts.token_budget, worker.bound_tokens, decodes, context)


def decode_view_of(book: Book, worker: Worker, capacity: int) -> DecodeView:
    """A decode worker, with what its sequences will probably still need."""
    decoding = worker.decoding
    remaining = [_remaining_tokens(book, group) for group in decoding]
    return DecodeView(
        cost=worker.cost,
        num_seqs=worker.num_seqs,
        context_tokens=worker.load.context_tokens,
        seq_capacity=capacity,
        free_blocks=worker.free_blocks,
        mean_remaining_tokens=sum(remaining) / len(remaining) if remaining else 1.0,
        mean_blocks=worker.leased_blocks / len(decoding) if decoding else 0.0,
    )


def _remaining_tokens(book: Book, group: Group) -> float:
    session = group.session
    expected = _expected_length(book, session.slo, session.stop)
    done = max(len(choice.token_ids) for choice in group.choices)
    # Whoever outlived the expectation is not about to end: of a long one, a quarter is still to come.
    return max(expected - done, min(0.25 * expected, session.stop.max_tokens - done), 1.0)


def _expected_length(book: Book, slo: Slo, stop: StopRules) -> float:
    return book.learnt.lengths[slo.slo_class].expected(stop.max_tokens, ignore_eos=stop.ignore_eos)


def tightest_tpot_s(worker: Worker, tpot_ms: int | None) -> float:
    """The least TPOT promised on a worker, `tpot_ms` included; infinite without any."""
    stated = [group.session.slo.tpot_ms for group in worker.decoding]
    return min((ms / 1000 for ms in (*stated, tpot_ms) if ms is not None), default=float("inf"))


def seat_limit(book: Book, worker: Worker, tpot_ms: int | None) -> int:
    """Most sequences that may run on a worker while every TPOT promised there, and this one, is kept."""
    tightest = tightest_tpot_s(worker, tpot_ms)
    most = worker.facts.max_num_seqs
    if tightest == float("inf"):
        return most
    _, q90 = book.learnt.tpot.quantiles(worker.num_seqs * TPOT_SCALE, book.now)
    return seq_capacity(decode_view_of(book, worker, most), most, tightest / q90)


def _harm_s(book: Book, slo: Slo, due_at: float, own_s: float) -> float:
    waiters = (
        Waiter(
            group.session.slo.slo_class,
            group.session.due_at,
            group.session.due_at - group.session.timeline.received_at - group.session.decision.ttft_s,
        )
        for group in book.waiting()
        if group.phase is Phase.WAITING
        and group.session.decision is not None
        and group.session.decision.verdict is Verdict.ACCEPTED
    )
    return max(0.0, own_s - least_slack_behind(waiters, slo.slo_class, due_at))


def promise_of(session: Session) -> Promise:
    """What the client was told."""
    decision = session.decision
    return Promise(
        predicted_ttft_ms=decision.ttft_s * 1000 if decision else 0.0,
        predicted_tpot_ms=decision.tpot_s * 1000 if decision else 0.0,
        ttft_ms=session.slo.ttft_ms,
        tpot_ms=session.slo.tpot_ms,
        at_risk=decision is not None and decision.verdict is Verdict.AT_RISK,
    )


def come_back_in_s(book: Book, judgement: Judgement, slo: Slo, work_tokens: int, request_key: str) -> float:
    """When a refused request should try again; successive refusals get successive times."""
    fleet = fleet_view(book, slo.tpot_ms)
    rate = prefill_rate(fleet.prefill)
    deficit_s = max(0.0, judgement.decision.ttft_s - (slo.ttft_ms or 0) / 1000)
    book.learnt.virtual_finish = next_virtual_finish(
        book.learnt.virtual_finish, book.now, deficit_s, work_tokens, rate, fleet.prefill_load
    )
    return retry_after_s(book.learnt.virtual_finish, book.now, request_key)


def tell_accepted(book: Book, session: Session) -> None:
    """The first event of every stream."""
    if session.listener is None:
        return
    book.do(
        TellAccepted(
            session.listener,
            session.request_id,
            promise_of(session),
            session.sampling.seed,
            len(session.prompt_token_ids),
        )
    )
