"""An attempt failed: the next one goes on from what was delivered, elsewhere if it can, thrice at most."""

from __future__ import annotations

from router import ending
from router.actions import AttemptFailed, GroupMigrated, TellRetrying
from router.book import Book
from router.fleet import Worker
from router.queueing import enqueue, new_groups, release_credit
from router.sessions import MAX_ATTEMPTS, Group, Phase, Session
from scheduling.request import FinishReason


def fail_attempt(book: Book, group: Group, worker_key: str, reason: str) -> None:
    """Give an attempt up on all its workers and start the next, or fail the request."""
    if group.phase is not Phase.RUNNING:
        return
    session = group.session
    group.failures += 1
    final = group.failures >= MAX_ATTEMPTS
    book.do(AttemptFailed(group.key, group.attempt, worker_key, reason, final))
    if final:
        ending.cut_off(
            book, session, FinishReason.FAILED, f"{MAX_ATTEMPTS} attempts failed, the last with: {reason}"
        )
        return
    book.counters.retried_attempts += 1
    tell_failures(book, session, group.failures)
    # The command is withdrawn even from whom reported the failure: unknown handles are ignored there.
    ending.detach(book, group, tell_workers=True)
    group.avoided |= {worker_key}
    for successor in new_groups(book, session, [choice for choice in group.choices if choice.open], group):
        enqueue(book, successor)


def tell_failures(book: Book, session: Session, failures: int) -> None:
    """So that a client that goes on elsewhere brings the count: no request fails all over a fleet."""
    if session.listener is not None and session.resume_grace_s > 0:
        book.do(TellRetrying(session.listener, failures))


def start_elsewhere(book: Book, group: Group, worker_key: str) -> None:
    """Take a group off its workers and queue it with what was delivered; no attempt has failed."""
    book.counters.migrated += 1
    book.do(GroupMigrated(group.key, worker_key))
    ending.detach(book, group, tell_workers=True)
    group.avoided |= {worker_key}
    open_choices = [choice for choice in group.choices if choice.open]
    for successor in new_groups(book, group.session, open_choices, group):
        enqueue(book, successor)


def on_worker_lost(book: Book, worker_key: str, reason: str) -> None:
    """Everything dispatched over its stream is over, except what has been handed over already.

    One that was draining left when it had nothing any more, or no more time: neither is a failure, and who
    fetches from it knows best whether the fetch was done.
    """
    worker = book.fleet.lose(worker_key)
    if worker is None:
        return
    for group in list(worker.groups.values()):
        if worker.draining and group.decode_key == worker.key:
            start_elsewhere(book, group, worker.key)
        elif worker.draining or _was_handed_over(group, worker):
            release_credit(book, group)
            group.prefill_key = None  # should it come back under this key, it knows nothing of the group
        else:
            fail_attempt(book, group, worker_key, f"worker lost: {reason}")


def _was_handed_over(group: Group, lost: Worker) -> bool:
    return lost.key != group.decode_key and group.decode_reported
