"""A router knows how far its machine's clock is off."""

from __future__ import annotations

from router.links.metrics import NAMESPACE
from tests.router.conftest import RunningFleet, until


async def test_a_router_compares_its_clock_with_that_of_redis(fleet: RunningFleet) -> None:
    sample = fleet.shell.metrics.registry.get_sample_value
    # Never zero to the microsecond once both were read.
    await until(lambda: sample(f"{NAMESPACE}_clock_offset_seconds") not in (None, 0.0))
