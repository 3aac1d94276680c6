"""Two routers on one Redis: one order, no lease twice, nothing lost when one of them dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.failures.many_routers import Plan, measure
from tests.fleet.driving import DEMO_MODEL

pytestmark = pytest.mark.integration

PLAN = Plan(
    model=DEMO_MODEL,
    rate=25.0,
    seconds=8.0,
    scale=0.1,
    # Seats for about as many as come: a queue forms, and its order means something.
    max_num_seqs=3,
)


async def test_order_leases_and_queued_requests_outlive_a_router(run_dir: Path) -> None:
    report = await measure(PLAN, run_dir=run_dir)
    assert report.violations == []
    assert report.outcome.finished > 0.7 * PLAN.rate * PLAN.seconds
    assert report.order.granted >= report.outcome.finished
    assert report.order.most_waiting > 5, "nothing waited, so nothing was put in order"
    assert report.outcome.resumed > 0, "the router that was killed held nothing"
