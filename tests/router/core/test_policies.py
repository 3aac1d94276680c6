"""The policy's name changes what the core does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.model.actions import Enqueue, Reject, ReleaseLease, Settle, TellAccepted
from router.core.model.events import Enqueued, Granted, GrantsAnswered
from router.request import Received
from scheduling.request import Slo, SloClass
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, call, core_of, grant, start, tell

URGENT = call(ARRIVAL, slo=Slo(ttft_ms=1, slo_class=SloClass.BATCH))


@pytest.mark.parametrize("policy", ["chunked", "slos_serve", "jitserve", "qoserve", "polyserve"])
def test_all_but_slack_take_everybody_with_a_prediction(policy: str) -> None:
    told = [
        action for action in arrive(core_of(policy), 1, URGENT) if isinstance(action, TellAccepted | Reject)
    ]
    assert [type(action) for action in told] == [TellAccepted]
    assert isinstance(told[0], TellAccepted)
    assert told[0].promise.at_risk
    assert told[0].promise.predicted_ttft_ms > 1
    assert any(isinstance(action, Reject) for action in arrive(core_of("slack"), 1, URGENT))


@pytest.mark.parametrize(
    ("policy", "rank"),
    [
        ("chunked", (0, 0)),
        ("slack", (3, 10)),
        ("slos_serve", (3, 10)),
        ("polyserve", (3, 10)),
        ("qoserve", (1, 11)),
        ("jitserve", (1, 938)),
    ],
)
def test_the_queue_is_ordered_by_arrival_or_by_due_time(policy: str, rank: tuple[int, int]) -> None:
    hurried = call(URGENT, slo=replace(URGENT.request.slo, ttft_ms=10))
    (asked,) = [action for action in arrive(core_of(policy), 1, hurried) if isinstance(action, Enqueue)]
    assert (asked.entry.slo_class, asked.entry.due_in_ms) == rank


@pytest.mark.parametrize("policy", ["jitserve", "qoserve"])
def test_who_comes_too_late_gives_way_once_and_then_is_served(policy: str) -> None:
    core = core_of(policy)
    hurried = call(ARRIVAL, slo=Slo(ttft_ms=500))
    (asked,) = [action for action in arrive(core, 1, hurried) if isinstance(action, Enqueue)]
    given = Granted("t/r1/0", ONE.key, ONE.key)
    late = tell(core, given, GrantsAnswered(ONE.key), now=1.6)
    assert [action for action in late if isinstance(action, Settle)] == []
    assert ReleaseLease("t/r1/0", ONE.key) in late
    (again,) = [action for action in late if isinstance(action, Enqueue)]
    assert (asked.entry.slo_class, again.entry.slo_class) == (SloClass.INTERACTIVE, SloClass.BATCH)
    key = again.entry.request_key
    tell(core, Enqueued(key, 0, 0), now=1.6)
    (settle,) = [
        action
        for action in tell(core, Granted(key, ONE.key, ONE.key), GrantsAnswered(ONE.key), now=1.7)
        if isinstance(action, Settle)
    ]
    assert settle.request_key == key


@pytest.mark.parametrize("policy", ["jitserve", "qoserve"])
def test_who_has_output_from_another_router_is_never_late(policy: str) -> None:
    core = core_of(policy)
    resumed = call(ARRIVAL, session=1, received=(Received(0, (9,)),), slo=Slo(ttft_ms=500))
    tell(core, resumed, Enqueued("t/r1/1", 0, 0))
    granted = tell(core, Granted("t/r1/1", ONE.key, ONE.key), GrantsAnswered(ONE.key), now=1.6)
    assert [action.request_key for action in granted if isinstance(action, Settle)] == ["t/r1/1"]


def test_who_comes_in_time_is_served_at_once() -> None:
    core = core_of("qoserve")
    arrive(core, 1, call(ARRIVAL, slo=Slo(ttft_ms=500)))
    assert len(grant(core, 1, ONE.key, now=1.4)) == 1


def test_binding_at_arrival_picks_the_worker_with_least_work() -> None:
    core = core_of("chunked")
    workers = [start(core, number)[0] for number in range(1, 31)]
    assert {workers.count(ONE.key), workers.count(TWO.key)} == {15}
    assert workers[0] != workers[1]
