"""Who goes first: the class, then the earliest due first token.

Earliest deadline first meets every due time that any order could meet, as long as the work fits
(Liu & Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", 1973).
Classes come before due times, so that a flood of batch work never delays an interactive request.
"""

from __future__ import annotations

from scheduling.policies.policy import Order
from scheduling.request import Slo, SloClass

DEFAULT_TTFT_MS = {SloClass.INTERACTIVE: 5_000, SloClass.STANDARD: 30_000, SloClass.BATCH: 300_000}
"""Where none is stated. Far beyond usual promises, so that whoever stated one goes first within a class;
not endless, so that whoever stated none is not starved either."""


def due_in_ms(slo: Slo, waited_s: float) -> int:
    """Milliseconds until the first token is due, counted from now; 0 when it is overdue."""
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return max(0, stated - round(waited_s * 1000))


def due_at(slo: Slo, received_at: float) -> float:
    """By when the first token is due, stated or not; seconds on the caller's clock."""
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return received_at + stated / 1000


def rank(order: Order, slo: Slo, waited_s: float) -> tuple[int, int]:
    """(class, milliseconds until due) by which the fleet's queue is ordered, counted from now.

    Who has waited longer is due earlier, so that asking for a place again changes no order.
    """
    if order is Order.ARRIVAL:
        return 0, -round(waited_s * 1000)
    return int(slo.slo_class), due_in_ms(slo, waited_s)
