from __future__ import annotations

import pytest

from benchmarks.costs.real_steps import StepRecorder
from benchmarks.costs.step_error import judge, perform, repetition
from scheduling.cost_model import StepShape
from worker.engine.engine import Engine
from worker.startup.build import build_engine
from worker.startup.flags import parse_config


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_engine(parse_config(["--model=demo_model", "--threads=1", "--policy=chunked"], "decode", 0))


def test_a_step_that_repeats_itself_deviates_by_nothing() -> None:
    shape, other = StepShape.of(1, 10, []), StepShape.of(2, 10, [])
    assert repetition([(shape, 2.0), (other, 5.0), (shape, 2.0)]) == 0
    assert repetition([(shape, 1.0), (shape, 2.0), (shape, 3.0), (other, 9.0)]) == 0.5


def test_requests_are_repeated_with_identical_shapes(engine: Engine) -> None:
    recorder = StepRecorder(engine, seed=1)
    first, second = (recorder.repeated((20, 20), 3) for _ in range(2))
    assert [shape for shape, _ in first] == [shape for shape, _ in second]
    assert first[0][0] == StepShape.of(0, 0, [(0, 20), (0, 20)])
    assert len(first) == 3


def test_acts_are_judged(engine: Engine) -> None:
    result = judge(engine, perform(engine, seed=1, num_acts=2))
    assert result.steps > 20
    assert 0 <= result.fitted_coverage <= 1
    assert result.fitted_error > 0
