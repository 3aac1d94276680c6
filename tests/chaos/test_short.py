"""A fleet under fire for a little while with every test run; `make chaos` goes on as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.burn import burn
from tests.chaos.plan import ALL, Kind, Phase, next_fault
from tests.chaos.streams import Course, Outcome, asks
from tests.chaos.tally import Tally

FAULTS = 5


@pytest.mark.integration
async def test_nothing_is_lost_repeated_changed_or_leaked(tmp_path: Path) -> None:
    tally = Tally()
    await burn(tmp_path / "run", seed=7, seconds=30.0, max_faults=FAULTS, tally=tally, say=lambda _: None)
    assert not tally.bad, tally.failures
    assert sum(tally.struck.values()) > 0
    assert tally.outcomes[Outcome.SAME] == tally.streams > 0


def test_every_kind_strikes_in_time() -> None:
    struck: dict[tuple[Kind, Phase], int] = {}
    rng = random.Random(1)
    for _ in range(200):
        fault = next_fault(struck, rng)
        struck[fault.kind, fault.phase] = struck.get((fault.kind, fault.phase), 0) + 1
    assert set(struck) == {(one.kind, one.phase) for one in ALL}
    assert max(struck.values()) - min(struck.values()) <= 1


def test_a_tally_adds_up_over_runs(tmp_path: Path) -> None:
    course = Course(asks(random.Random(1), 1)[0], token_times=[1.0, 4.0], outcome=Outcome.LOST, why="gone")
    one = Tally(minutes=1.5)
    one.add_strike(ALL[0], course, struck_at=2.0)
    one.add_stream(course, "seed 1")
    one.add_leaks({"blocks of decode-0": 3}, "seed 1")
    path = tmp_path / "tally.json"
    one.save(path)
    two = Tally.load(path)
    assert two == one
    two.merge(Tally.load(path))
    assert two.bad == 4
    assert two.minutes == 3.0
    assert two.recoveries_s[f"{ALL[0].kind} of {ALL[0].place}"] == [2.0, 2.0]
    assert Tally.load(tmp_path / "none yet") == Tally()
