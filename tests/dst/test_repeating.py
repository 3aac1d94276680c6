"""A run is one number: the same seed gives the same run, and a run without a fault is otherwise the same."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.dst.run import play, virtual
from tests.dst.scenario import Scenario, draw, from_json
from tests.dst.world.dice import Dice

SEEDS = range(900, 912)


@pytest.fixture(scope="module")
def traces() -> list[str]:
    with virtual():
        return [play(draw(seed)).trace for seed in SEEDS]


def test_a_seed_gives_the_same_run_again(traces: list[str]) -> None:
    with virtual():
        assert [play(draw(seed)).trace for seed in SEEDS] == traces
    assert len(set(traces)) == len(traces)


def test_a_seed_gives_the_same_run_in_another_process(traces: list[str]) -> None:
    program = (
        "from tests.dst.run import play, virtual\n"
        "from tests.dst.scenario import draw\n"
        f"with virtual(): print(*(play(draw(seed)).trace for seed in {SEEDS!r}))"
    )
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        assert result.stdout.split() == traces


def test_a_fault_that_never_strikes_changes_nothing() -> None:
    scenario = next(draw(seed) for seed in range(100) if draw(seed).faults)
    idle = replace(scenario.faults[0], upon=("nobody", "queued"), at=None)
    with virtual():
        without = play(replace(scenario, faults=()))
        assert play(replace(scenario, faults=(idle,))).trace == without.trace


def test_a_draw_depends_on_no_other_draw() -> None:
    dice, other = Dice(1), Dice(1)
    first = dice.share("delay", "r0", 1)
    other.share("something", "else")
    assert other.share("delay", "r0", 1) == first
    assert Dice(2).share("delay", "r0", 1) != first


@pytest.mark.parametrize("seed", range(50))
def test_a_scenario_survives_its_file(seed: int) -> None:
    scenario = draw(seed)
    assert from_json(scenario.to_json()) == scenario


def test_a_file_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Scenario has routes; accepted: .*routers"):
        from_json(Scenario(1).to_json().replace('"routers"', '"routes"'))
