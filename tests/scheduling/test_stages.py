"""How steps follow one another on a pipeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.speeds import num_micro_batches, round_s, share, step_limit_s
from sim.workers.pipeline import Stages

stages = st.integers(1, 8)


def test_without_a_pipeline_one_step_follows_the_other() -> None:
    assert num_micro_batches(1) == 1
    assert round_s(0.02, 1) == step_limit_s(0.02, 1) == 0.02
    assert share(7, 1) == 7


@given(stages, st.integers(1, 9))
def test_steps_of_equal_length_come_in_rounds(num_stages: int, num_in_flight: int) -> None:
    """The same as in the simulator's stages, where each step begins again as soon as it is over."""
    num_in_flight, step_s = min(num_in_flight, num_micro_batches(num_stages)), 0.02
    worker, ready_at = Stages(num_stages), [0.0] * num_in_flight
    begins = []
    for turn in range(20 * num_in_flight):
        place = turn % num_in_flight
        begin = max(ready_at[place], worker.first_free_at)
        ready_at[place] = worker.enter(begin, step_s, opens=False)
        begins.append(begin)
    measured_s = (begins[-1] - begins[-1 - 10 * num_in_flight]) / 10
    assert measured_s == pytest.approx(round_s(step_s, num_stages, num_in_flight))


@given(stages, st.floats(0.001, 1.0))
def test_the_step_limit_keeps_the_pace(num_stages: int, pace_s: float) -> None:
    assert round_s(step_limit_s(pace_s, num_stages), num_stages) == pytest.approx(pace_s)


@given(stages, st.integers(0, 1000))
def test_shares_hold_everything(num_stages: int, number: int) -> None:
    num_batches = num_micro_batches(num_stages)
    assert 0 <= share(number, num_stages) * num_batches - number < num_batches
