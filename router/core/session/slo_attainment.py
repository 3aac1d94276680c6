"""Which of the promises that were asked for were kept: one place for what clients and metrics are told."""

from __future__ import annotations

from dataclasses import dataclass

from router.core.actions import Promise


@dataclass(frozen=True, slots=True)
class Kept:
    """True too where nothing of the kind was asked for."""

    ttft: bool
    tpot: bool
    itl: bool

    @property
    def all(self) -> bool:
        return self.ttft and self.tpot and self.itl


def kept(promise: Promise, ttft_ms: float, tpot_ms: float | None, max_gap_ms: float) -> Kept:
    """Judge what was delivered, in milliseconds; without a second token there is no pace to break."""
    return Kept(
        ttft=promise.ttft_ms is None or ttft_ms <= promise.ttft_ms,
        tpot=promise.tpot_ms is None or tpot_ms is None or tpot_ms <= promise.tpot_ms,
        itl=promise.itl_ms is None or max_gap_ms <= promise.itl_ms,
    )
