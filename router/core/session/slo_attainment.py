"""Which of the stated SLOs were met: the one place that judges it for clients and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from router.core.actions import Outcome, Promise


@dataclass(frozen=True, slots=True)
class SloAttainment:
    """Which limits were met; True too where a limit was not stated."""

    ttft: bool
    tpot: bool
    itl: bool

    @property
    def all(self) -> bool:
        return self.ttft and self.tpot and self.itl


def attained(promise: Promise, ttft_ms: float, tpot_ms: float | None, max_gap_ms: float) -> SloAttainment:
    """Judge what was delivered, in milliseconds; without a second token there is no TPOT to miss."""
    return SloAttainment(
        ttft=promise.ttft_ms is None or ttft_ms <= promise.ttft_ms,
        tpot=promise.tpot_ms is None or tpot_ms is None or tpot_ms <= promise.tpot_ms,
        itl=promise.itl_ms is None or max_gap_ms <= promise.itl_ms,
    )


def attained_by(outcome: Outcome) -> SloAttainment:
    """Judge an ended request by the times at which its tokens reached the router."""
    ttft_ms = (outcome.marks.first_token_at - outcome.marks.received_at) * 1000
    tpot_ms = None if outcome.tpot_s is None else outcome.tpot_s * 1000
    return attained(outcome.promise, ttft_ms, tpot_ms, outcome.max_gap_s * 1000)
