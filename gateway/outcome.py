"""The parts of a response that are Baton's own: promise, delivery, and an early end."""

from __future__ import annotations

from typing import Any

from baton.types import Accepted, Delivery, Finished, FinishReason, Promise, TimeSplit
from baton.wire.fields import names_of
from baton.wire.shown import rounded
from gateway.errors import Problem


def comment(text: str) -> bytes:
    """Return a server-sent comment, which clients ignore."""
    return f": {text}\n\n".encode()


def early_end(reason: FinishReason, error: str) -> Problem:
    """Return the problem of a generation that the fleet could not continue, or that somebody cancelled."""
    if reason is FinishReason.CANCELLED:
        return Problem(409, "api_error", "the generation was cancelled", code="cancelled")
    return Problem(500, "api_error", error or "the fleet could not continue", code="generation_failed")


def outcome_json(request_id: str, end: Finished, resumes: int) -> dict[str, Any]:
    """Return what was promised and delivered, and where the time went, in milliseconds."""
    return {
        "request_id": request_id,
        "promise": _numbers_in(end.promise),
        "delivery": _numbers_in(end.delivery),
        "time_split": _numbers_in(end.split),
        "attempts": end.usage.attempts,
        "resumes": resumes,
        "path": end.path,
    }


def _numbers_in(part: Promise | Delivery | TimeSplit) -> dict[str, Any]:
    found: dict[str, Any] = rounded({name: getattr(part, name) for name in names_of(type(part))})  # type: ignore[arg-type]  # types are hashable
    return found


def promise_headers(accepted: Accepted) -> dict[str, str]:
    """Return the promise as headers, which a caller has before the first token."""
    promise = accepted.promise
    return {
        "x-request-id": accepted.request_id,
        "x-baton-seed": str(accepted.seed),
        "x-baton-predicted-ttft-ms": f"{promise.predicted_ttft_ms:.1f}",
        "x-baton-predicted-tpot-ms": f"{promise.predicted_tpot_ms:.2f}",
        "x-baton-at-risk": str(promise.at_risk).lower(),
    }


def end_of(reason: FinishReason, *, has_cut_call: bool) -> FinishReason:
    """Return how a choice ended.

    An output with a call that a stop rule cut off is as incomplete as one that reached its limit, which is
    what clients know of calls that must not run.
    """
    return FinishReason.LENGTH if has_cut_call and reason is FinishReason.STOP else reason
