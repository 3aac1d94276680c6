"""Newcomers that wait for a fleet which has lost its last decode worker a moment ago.

A worker that is restarted, or whose link broke, is back within seconds. A call that comes meanwhile is kept,
in no queue and without an answer. It waits until the TTFT that it states has passed, and at most until
`no_worker_grace_s` after the last decode worker was lost. After that, a fleet without a decode worker refuses
at once.
"""

from __future__ import annotations

from router.core.session.session import Session
from router.core.state import RouterState
from router.errors import Overloaded, Reason, Unavailable


def check_worth_waiting(state: RouterState, session: Session) -> None:
    """Raise RouterError if a call must not wait for a decode worker."""
    if is_over(state, session):
        raise no_worker()
    if len(state.awaiting) >= state.config.queue_capacity:
        raise queue_full(state)


def is_over(state: RouterState, session: Session) -> bool:
    """Return True if a call has waited for a decode worker for as long as it may."""
    return state.now >= min(state.served_at + state.config.no_worker_grace_s, session.ttft_due_at)


def no_worker() -> Unavailable:
    """Return the error for a call that no worker could serve."""
    return Unavailable(Reason.NO_WORKER, "no decode worker is connected")


def queue_full(state: RouterState) -> Overloaded:
    """Return the error for a call that comes when the most calls that may wait are waiting."""
    capacity = state.config.queue_capacity
    wait_s = min(60.0, 0.1 + state.queue.waiting * 0.01)
    why = f"the fleet's queue is full: {capacity} requests wait"
    return Overloaded(Reason.QUEUE_FULL, why, wait_s, limit=capacity)
