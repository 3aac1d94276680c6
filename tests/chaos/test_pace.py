"""How often it strikes."""

from __future__ import annotations

import asyncio

from tests.chaos.plan import ALL
from tests.chaos.streams import Outcome
from tests.chaos.strikes import FAULTS_PER_STREAM, Pace
from tests.chaos.tally import Tally
from tests.chaos.watch import Hit


async def test_faults_wait_for_streams() -> None:
    tally = Tally()
    pace = Pace(tally, crowd=1, max_faults=3)
    await pace.turn()
    tally.add_strike(ALL[0], Hit("a", "router-0", 0.0))
    assert tally.num_struck > FAULTS_PER_STREAM
    waiting = asyncio.create_task(pace.turn())
    await asyncio.sleep(0)
    assert not waiting.done()
    tally.outcomes[Outcome.SAME] += 1
    pace.on_stream()
    await waiting
    assert not pace.over
    for _ in range(2):
        tally.add_strike(ALL[0], Hit("a", "router-0", 0.0))
    assert pace.over
