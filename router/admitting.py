"""A place in the queue was given: now the work ahead is known, and the promise is made or refused."""

from __future__ import annotations

from router import ending
from router.actions import Dequeue, Reject, ReleaseCredit, RequestRefused, TellQueued
from router.book import Book
from router.errors import Overloaded, RouterError, SloRefused, Unavailable
from router.promising import Judgement, ask_of, come_back_in_s, judge, tell_accepted
from router.queueing import strand, take_grant
from router.sessions import Group, Phase, Session
from scheduling.admission import Verdict
from scheduling.prediction import Ahead


def on_enqueued(book: Book, request_key: str, position: int, work_ahead_tokens: int) -> None:
    """Decide on a newcomer; whoever is admitted already just learns its place."""
    group = book.groups.get(request_key)
    if group is None or group.phase not in (Phase.ENQUEUEING, Phase.WAITING):
        return
    session = group.session
    ahead = Ahead(work_ahead_tokens, position)
    if not session.admitted and not _admit(book, session, group, ahead):
        return
    if group.phase is Phase.ENQUEUEING:
        book.move(group, Phase.WAITING)
        group.stranded_at = None
    _tell_queued(book, session, ahead)
    book.grants_wanted = True
    if group.early_grant is not None:
        worker_key, group.early_grant = group.early_grant, None
        take_grant(book, group, worker_key)


def _admit(book: Book, session: Session, group: Group, ahead: Ahead) -> bool:
    if not book.fleet.serves():
        _turn_away(book, session, Unavailable("no decode worker is connected"))
        return False
    judgement = judge(book, ask_of(book, session, group), session.slo, group.due_at, ahead)
    if judgement.decision.verdict is Verdict.REFUSED:
        _refuse(book, session, group, judgement)
        return False
    session.admitted = True
    session.decision, session.predicted = judgement.decision, judgement.predicted
    session.work_ahead_tokens = judgement.work_ahead_tokens
    book.learnt.admitted.add(group.work_tokens, book.now)
    for one in session.groups:
        book.waiting.promised(one)
    book.counters.accepted += 1
    tell_accepted(book, session)
    return True


def _tell_queued(book: Book, session: Session, ahead: Ahead) -> None:
    if session.listener is not None and session.decision is not None and ahead.requests > 0:
        predicted_ms = session.decision.ttft_s * 1000
        book.do(TellQueued(session.listener, ahead.requests, ahead.tokens, predicted_ms))


def _refuse(book: Book, session: Session, group: Group, judgement: Judgement) -> None:
    wait_s = come_back_in_s(book, judgement, session.slo, group.work_tokens, group.key)
    book.do(Dequeue(group.key))
    if group.early_grant is not None:
        book.do(ReleaseCredit(group.key, group.early_grant))
    _turn_away(book, session, SloRefused(judgement.decision, wait_s))


def on_queue_full(book: Book, request_key: str, capacity: int) -> None:
    """A newcomer is turned away; what was admitted stays, and tries again."""
    group = book.groups.get(request_key)
    if group is None or group.phase not in (Phase.ENQUEUEING, Phase.WAITING):
        return
    if group.session.admitted:
        strand(book, group)
        return
    wait_s = min(60.0, 0.1 + book.queue.waiting * 0.01)
    error = Overloaded(f"the fleet's queue is full: {capacity} requests wait", wait_s)
    _turn_away(book, group.session, error)


def on_enqueue_failed(book: Book, group: Group, reason: str) -> None:
    """Without the store nobody new is admitted; what was admitted survives in this router."""
    if group.session.admitted:
        strand(book, group)
    else:
        _turn_away(
            book,
            group.session,
            Unavailable(f"Redis, which holds the fleet's queue, does not answer: {reason}"),
        )


def _turn_away(book: Book, session: Session, error: RouterError) -> None:
    book.counters.refused += 1
    book.do(RequestRefused(session.slo.slo_class, error))
    if session.listener is not None:
        book.do(Reject(session.listener, error))
    ending.forget(book, session)
