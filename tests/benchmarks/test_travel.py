"""A command took at least until the last step without its prompt, and at most until the first one with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleets.travel import Travel, Travels, commands, usual_s
from router.core.model.events import WorkerLoad
from tests.benchmarks.test_recorded import step

KEY = "decode-0:i1"
"""The worker of `step`, whose steps take 10 ms."""


def test_steps_of_others_bound_the_travel() -> None:
    travels = Travels()
    travels.send(KEY, 1.0)
    for at_s, prefill in ((1.005, 0), (1.013, 0), (1.025, 64)):
        travels.take(step(2, prefill), at_s, is_idle=False)
    [travel] = travels.found
    assert (travel.sent_at, travel.least_s, travel.most_s) == (
        1.0,
        pytest.approx(0.003),
        pytest.approx(0.015),
    )


def test_an_idle_worker_begins_at_once() -> None:
    travels = Travels()
    travels.send(KEY, 1.0)
    travels.take(step(0, 64), 1.012, is_idle=True)
    [travel] = travels.found
    assert travel.least_s == travel.most_s == pytest.approx(0.002)


def test_prompts_behind_others_do_not_count() -> None:
    travels = Travels()
    travels.send(KEY, 1.0)
    travels.send(KEY, 1.001)
    more = replace(step(0, 64), load=WorkerLoad(pending_prefill_tokens=64))
    for report in (more, step(0, 64)):
        travels.take(report, 1.02, is_idle=False)
    assert travels.found == []
    travels.send(KEY, 2.0)
    travels.take(step(0, 64), 2.02, is_idle=False)
    assert len(travels.found) == 1


def test_the_usual_time_is_within_most_bounds() -> None:
    bounds = [(0.0, 0.004), (0.002, 0.003), (0.005, 0.009), (0.0015, 0.0025), (0.0, 0.001)]
    travels = [Travel(float(at_s), least_s, most_s) for at_s, (least_s, most_s) in enumerate(bounds)]
    assert usual_s(travels) == 0.002
    assert usual_s([]) == 0.0
    took = [(each.at_s, each.lasted_s) for each in commands(travels, 0.002, 0.001)]
    assert took == [(0.0, 0.001), (1.0, 0.001), (2.0, 0.004), (3.0, 0.001), (4.0, 0.0)]
