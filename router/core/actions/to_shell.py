"""Timers, logs and metrics, which concern neither clients nor the store nor workers."""

from __future__ import annotations

from router.core.actions.to_clients import Outcome
from router.core.events import Timer
from router.errors import RouterError
from scheduling.request import SloClass
from scheduling.value import value


@value
class SetTimer:
    timer: Timer
    at: float


@value
class RequestRefused:
    """Count a refusal; the client gets `Reject`."""

    slo_class: SloClass
    error: RouterError


@value
class RequestEnded:
    """Count an ended request; a client that is still there gets `TellFinished`."""

    request_key: str
    outcome: Outcome


@value
class AttemptFailed:
    """Log and count a failed attempt; `final` if it failed the request."""

    request_key: str
    attempt: int
    worker_key: str
    reason: str
    final: bool


@value
class RequestShed:
    """Count a request at risk that gave up its SLO so that more are in time; it waits on, behind them."""

    request_key: str


@value
class PromiseBroken:
    """Log and count an accepted request that was put behind, because capacity died."""

    request_key: str


@value
class GroupPreempted:
    """Count a running group whose worker took its blocks."""

    request_key: str
    worker_key: str


@value
class GroupMigrated:
    """Count a group that goes on elsewhere, though no attempt has failed."""

    request_key: str
    worker_key: str
    """The worker that it left."""


@value
class StoreChanged:
    """Log that the store went away, or came back."""

    reachable: bool
    reason: str
