"""The order of the queue: by class, then by the earliest due first token.

Earliest deadline first meets every due time that any order could meet, as long as the work fits
(Liu & Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", 1973).
Classes come before due times, so that a flood of batch work never delays an interactive request.
"""

from __future__ import annotations

from scheduling.policies.policy import Order
from scheduling.request import Slo, SloClass

DEFAULT_TTFT_MS = {SloClass.INTERACTIVE: 5_000, SloClass.STANDARD: 30_000, SloClass.BATCH: 300_000}
"""The TTFT limit for requests that state none. It is far beyond usual promises, so requests with a limit go
first within a class; it is finite, so requests without one are not starved."""


def due_in_ms(slo: Slo, waited_s: float) -> int:
    """Return the milliseconds from now until the first token is due; 0 if it is overdue."""
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return max(0, stated - round(waited_s * 1000))


def due_at(slo: Slo, received_at: float) -> float:
    """Return when the first token is due, stated or by default; seconds on the caller's clock.

    It orders the queue. It is no promise: a request that states no TTFT is never late.
    """
    stated = slo.ttft_ms if slo.ttft_ms is not None else DEFAULT_TTFT_MS[slo.slo_class]
    return received_at + stated / 1000


def rank(order: Order, slo: Slo, waited_s: float) -> tuple[int, int]:
    """Return the rank in the fleet's queue: (class, milliseconds from now until due).

    A request that has waited longer is due earlier, so asking for a place again does not change the order.
    """
    if order is Order.ARRIVAL:
        return 0, -round(waited_s * 1000)
    return int(slo.slo_class), due_in_ms(slo, waited_s)
