"""A fleet under fire for a little while with every test run; `make chaos` goes on as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.burn import Orders, burn
from tests.chaos.streams import Outcome
from tests.chaos.tally import Tally


@pytest.mark.long
@pytest.mark.integration
async def test_nothing_is_lost_repeated_changed_or_leaked(tmp_path: Path) -> None:
    tally = Tally()
    lanes = ("kills 1", "limits", "delays", "corruption", "cuts", "messages 1")
    # Even: placement is conditional.
    orders = Orders(seed=8, seconds=30.0, max_faults=20, lanes=lanes)
    await burn(tmp_path / "run", orders, Tally(), tally, say=lambda _: None)
    assert not tally.bad, tally.failures
    assert tally.num_struck > 0
    assert tally.http["streams"] > 0
    assert tally.outcomes[Outcome.SAME] == tally.streams > 0
