"""Recorded delays are played in their order, and slow a simulated fleet down as they did the live one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.delays import KINDS, RecordedDelay, RecordedLine, delay_of
from sim.play.simulation import run
from sim.spec import FleetShape, SimSpec
from tests.sim.conftest import make_profile, make_trace


def test_each_value_is_taken_once_in_the_order_of_their_times() -> None:
    line = RecordedLine([(0.2, 3.0), (0.0, 1.0), (0.1, 2.0)])
    assert [line.take(now) for now in (0.1, 0.1, 0.1)] == [1.0, 2.0, 3.0]


def test_what_was_at_quite_another_time_is_passed_over() -> None:
    line = RecordedLine([(0.0, 1.0), (5.0, 2.0), (9.0, 3.0)])
    assert [line.take(now) for now in (5.1, 0.0, 20.0, 20.0)] == [2.0, 1.0, 3.0, 3.0]


def test_without_a_record_each_takes_as_long() -> None:
    delay = delay_of("grant", {"enqueue": (RecordedDelay(0.0, 9.0),)}, 0.5)
    assert [delay(now) for now in (0.0, 7.0)] == [0.5, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_delay_comes_before_the_first_token(kind: str) -> None:
    # Without a latency that it states, it would be leased at once, without a grant that is settled.
    spec = SimSpec(make_profile(), FleetShape(1, 1), make_trace(1, 1.0, ttft_ms=60_000), noise=0.0)
    slow = replace(spec, delays={kind: (RecordedDelay(0.0, 0.1),)})
    [usual], [delayed] = run(spec).requests, run(slow).requests
    assert usual.ttft_s is not None
    assert delayed.ttft_s is not None
    assert usual.ttft_s + 0.09 < delayed.ttft_s


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="delays are given for 'settled'; accepted: receive, enqueue, grant"):
        SimSpec(make_profile(), FleetShape(0, 1), make_trace(1, 1.0), delays={"settled": ()})
