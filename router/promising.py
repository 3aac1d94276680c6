"""What the core predicts and promises: its picture of the fleet as the views that `scheduling` judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from router.actions import Promise, TellAccepted
from router.book import Book
from router.errors import Reason, ValidationError
from router.fleet import DECODE, Worker
from router.impossible import Impossible, bare, impossible
from router.outlook import TPOT_SCALE, is_cut
from router.paths import along_paths
from router.prefixes import cached_tokens, held_by_all
from router.sessions import Group, Session
from scheduling.admission import (
    Cause,
    Decision,
    Spread,
    Verdict,
    at_most,
    at_rest,
    decide,
    meets,
    next_virtual_finish,
    retry_after_s,
    unpromised,
)
from scheduling.backlog import Pace
from scheduling.prediction import Ahead, Ask, Capacity, Prediction, predict
from scheduling.request import MAX_SLO_MS, Slo
from scheduling.value import value

NO_HITS: Mapping[str, int] = {}


def check_possible(book: Book, ask: Ask, slo: Slo) -> None:
    """Raises ValidationError for an SLO that an idle fleet could not meet either; baselines take anything."""
    if not (slo.is_stated and book.config.policy.promises):
        return
    computing, decoding = book.fleet.computing, book.fleet.open(DECODE)
    # What one worker could do the fleet could: mostly there is no need to ask the others.
    found = _impossible(ask, slo, computing[:1], decoding[:1]) and _impossible(ask, slo, computing, decoding)
    if found is not None:
        accepted = f"{found.least_ms} to {MAX_SLO_MS}, or unset: less no worker of this fleet takes when idle"
        raise ValidationError(
            found.field, found.value_ms, accepted, Reason.SLO_IMPOSSIBLE, limit=found.least_ms
        )


def _impossible(
    ask: Ask, slo: Slo, computing: Sequence[Worker], decoding: Sequence[Worker]
) -> Impossible | None:
    budgets = [(worker.cost, worker.facts.token_budget) for worker in computing]
    return impossible(slo, bare(ask, budgets, [worker.cost for worker in decoding]))


@value
class Judgement:
    """A decision with what it was made on."""

    decision: Decision
    predicted: Prediction
    work_ahead_tokens: int


@value
class _Foreseen:
    """What a request would find, with how far such predictions are off."""

    predicted: Prediction
    work_ahead_tokens: int
    capacity: Capacity
    ttft: Spread
    tpot: Spread

    def judged(self, slo: Slo, harm_s: float = 0.0) -> Judgement:
        """The decision; `harm_s` is by how much it would make others late."""
        decision = decide(slo, self.predicted, self.ttft, self.tpot, harm_s)
        return Judgement(decision, self.predicted, self.work_ahead_tokens)


def judge(
    book: Book,
    ask: Ask,
    slo: Slo,
    due_at: float,
    ahead: Ahead,
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
    foreseen = _foresee(book, ask, slo, ahead, hits)
    if not book.config.policy.promises:
        judgement = foreseen.judged(slo)
        return replace(judgement, decision=unpromised(judgement.decision))
    harm_s = max(harm_s, _harm_s(book, ask, slo, due_at, ahead, foreseen, waits=waits))
    return foreseen.judged(slo, harm_s)


def _foresee(book: Book, ask: Ask, slo: Slo, ahead: Ahead, hits: Mapping[str, int]) -> _Foreseen:
    capacity = book.outlook.capacity(slo.pace_ms)
    work_ahead = ahead.tokens + book.fleet.bound_tokens
    predicted = predict(ask, Ahead(work_ahead, ahead.requests), capacity, load_of(book, capacity))
    predicted = along_paths(book, ask, ahead, predicted, cached_tokens(book, hits, ahead))
    fixed_s = book.learnt.fixed.seconds(book.now)
    predicted = replace(predicted, ttft_s=predicted.ttft_s + fixed_s, fixed_s=fixed_s)
    # A wait for a decode slot is work ahead as well.
    work_ahead = max(work_ahead, round(predicted.wait_s * capacity.prefill_rate))
    ttft = book.learnt.ttft_spread(predicted, book.now)
    tpot = Spread(*book.learnt.tpot.quantiles(predicted.batch_size * TPOT_SCALE, book.now))
    if slo.tpot_ms is not None and is_cut(book, capacity.roomiest.cost):
        # A ratio times what it was divided by may be more by a rounding, and would refuse what is kept.
        kept_s = max(predicted.itl_s, slo.tpot_ms / 1000 * (1 - 1e-9))
        tpot = at_most(tpot, kept_s / predicted.tpot_s)
    if ahead.requests == 0 and book.fleet.idle:
        ttft, tpot = at_rest(ttft), at_rest(tpot)
    return _Foreseen(predicted, work_ahead, capacity, ttft, tpot)


def _harm_s(
    book: Book, ask: Ask, slo: Slo, due_at: float, ahead: Ahead, foreseen: _Foreseen, *, waits: bool
) -> float:
    """By how much it would make others late that wait behind it."""
    if not slo.is_stated or len(book.waiting) <= waits:
        return 0.0
    pace = Pace(
        now=book.now,
        start_tokens=book.fleet.bound_tokens,
        rate=foreseen.capacity.prefill_rate,
        stretch=foreseen.ttft.q90,
        scale=_scale(book, slo, due_at, ask.prompt_tokens if waits else 0, ahead),
    )
    return book.waiting.backlog.harm_s(slo.slo_class, due_at, ask.prompt_tokens, pace, waits=waits)


def judge_fairly(
    book: Book,
    ask: Ask,
    slo: Slo,
    due_at: float,
    ahead: Ahead,
    hits: Mapping[str, int] = NO_HITS,
    *,
    waits: bool = True,
    harm_s: float = 0.0,
) -> Judgement:
    """Judge a newcomer, which may have to leave room for longer ones that get less than their share."""
    judgement = judge(book, ask, slo, due_at, ahead, hits, waits=waits, harm_s=harm_s)
    is_refused = judgement.decision.verdict is Verdict.REFUSED
    if slo.ttft_ms is None or is_refused or not book.config.policy.promises:
        return judgement
    # Lower classes give way first: what was admitted of them is no load to this one.
    admitted = book.learnt.by_class.admitted_until(slo.slo_class, book.now)
    load = admitted / book.outlook.capacity(slo.pace_ms).prefill_rate
    longer_by = book.learnt.by_length[slo.slo_class].held_back(ask.prompt_tokens, load, book.now)
    if longer_by == 0:
        return judgement
    longer = replace(ask, prompt_tokens=ask.prompt_tokens + longer_by)
    # Whoever is behind is no later for it: what it was judged longer by is not computed.
    held_back = _foresee(book, longer, slo, ahead, hits).judged(slo)
    if held_back.decision.verdict is not Verdict.REFUSED:
        return judgement
    return replace(judgement, decision=replace(held_back.decision, cause=Cause.LENGTHS))


def class_wait_s(book: Book, slo: Slo) -> float:
    """Seconds until a request's class may have more of the fleet; 0 where it may now, or promises nothing."""
    if not book.config.policy.promises:
        return 0.0
    rate = book.outlook.capacity(slo.pace_ms).prefill_rate
    return book.learnt.by_class.wait_s(slo.slo_class, rate, book.now)


def learn_length(book: Book, ask: Ask, slo: Slo, judgement: Judgement) -> None:
    """Who was admitted counts by its length. Not so who was refused what it could not have had with nothing
    before it, beside the decodes that run: no room left for it would help.
    """
    if slo.ttft_ms is None or not book.config.policy.promises:
        return
    decision, predicted = judgement.decision, judgement.predicted
    admitted = decision.verdict is not Verdict.REFUSED
    if admitted or meets(slo, predicted.ttft_s - predicted.wait_s, predicted.tpot_s, predicted.itl_s):
        book.learnt.by_length[slo.slo_class].decided(ask.prompt_tokens, book.now, admitted=admitted)


def load_of(book: Book, capacity: Capacity) -> float:
    """Prompt tokens admitted per second of late, by what the fleet computes; 1 at most."""
    return min(1.0, book.learnt.admitted.rate(book.now) / capacity.prefill_rate)


def _scale(book: Book, slo: Slo, due_at: float, own_tokens: int, ahead: Ahead) -> float:
    """The fleet's waiting tokens per token of ours: other routers' are known by the work ahead alone."""
    ours = book.waiting.backlog.tokens_before(slo.slo_class, due_at) - own_tokens
    return max(1.0, ahead.tokens / ours) if ours > 0 else 1.0


def ask_of(book: Book, session: Session, group: Group) -> Ask:
    """What a group brings along, wherever it goes."""
    cached = held_by_all(book, session.prefix_hits)
    return Ask(group.work_tokens, cached, group.blocks, group.num_seqs)


def bare_ask(book: Book, session: Session) -> Ask:
    """The same before there are groups, where the most that any worker may have cached is counted."""
    cached = max(session.prefix_hits.values(), default=0) * book.fleet.block_size
    return Ask(len(session.prompt_token_ids), cached, 0, len(session.choices))


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


def come_back_in_s(book: Book, judgement: Judgement, slo: Slo, work_tokens: int, request_key: str) -> float:
    """When a refused request should try again; successive refusals get successive times."""
    capacity = book.outlook.capacity(slo.pace_ms)
    rate, load = capacity.prefill_rate, load_of(book, capacity)
    deficit_s = max(0.0, judgement.decision.ttft_s - (slo.ttft_ms or 0) / 1000)
    book.learnt.virtual_finish = next_virtual_finish(
        book.learnt.virtual_finish, book.now, deficit_s, work_tokens, rate, load
    )
    return retry_after_s(book.learnt.virtual_finish, book.now, request_key)


def tell_accepted(book: Book, session: Session, only: int | None = None) -> None:
    """The first event of every stream: to all calls, or the `only` one."""
    promise, seed, num_prompt = promise_of(session), session.sampling.seed, len(session.prompt_token_ids)
    weights = book.fleet.fingerprint
    for listener in session.listeners:
        if only in (None, listener):
            book.do(TellAccepted(listener, session.request_id, promise, seed, num_prompt, weights))
