"""Single decisions, and what the status says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.controller.decide import DrainWorker, SetReplicas, SetStanding, decide
from deploy.controller.observed import Deployment, Fleet, Pod, Pool, RouterView, Seen, Standing, Worker
from deploy.controller.report import report

IN = Standing.IN_SERVICE


def fleet(**tokens: int) -> Fleet:
    """Return what two routers say of workers that hold so many tokens."""
    workers = {name: Worker(tokens=count) for name, count in tokens.items()}
    return Fleet(tuple(RouterView(address, workers, "weights") for address in ("a", "b")))


def seen(target: int, *pods: Pod, says: Fleet, replicas: int | None = None) -> Seen:
    deployment = Deployment(len(pods) if replicas is None else replicas, "new")
    return Seen(Pool("pool", "workers", target), deployment, pods, says)


def working(name: str, revision: str = "new") -> Pod:
    return Pod(name, revision, IN, ready=True)


def test_the_worker_with_the_least_to_hand_over_leaves() -> None:
    pods = (working("a"), working("b"), working("c"))
    steps = decide(seen(2, *pods, says=fleet(a=900, b=30, c=400)))
    assert steps == (SetStanding("b", Standing.RETIRING),)


def test_a_worker_that_never_served_leaves_first_and_at_once() -> None:
    starting = Pod("c", "new")
    steps = decide(seen(2, working("a"), working("b"), starting, says=fleet(a=0, b=0)))
    assert steps == (SetReplicas(2),)


def test_a_rollout_replaces_the_cheapest_old_worker() -> None:
    pods = (working("a", "old"), working("b", "old"), Pod("c", "new"))
    steps = decide(seen(2, *pods, says=fleet(a=900, b=30, c=0), replicas=2))
    assert steps == (SetStanding("b", Standing.RETIRING),)


def test_a_revert_takes_back_a_worker_that_was_to_leave() -> None:
    wanted_back = Pod("a", "new", Standing.RETIRING)
    pods = (wanted_back, working("b", "old"), working("c", "old"))
    steps = decide(seen(2, *pods, says=fleet(a=0, b=30, c=40), replicas=2))
    assert steps == (SetStanding("b", Standing.RETIRING),)


def test_a_new_worker_waits_until_every_router_routes_to_it() -> None:
    both = fleet(a=0).views
    knows_more = replace(both[1], workers={"a": Worker(), "b": Worker()})
    says = Fleet((both[0], knows_more))
    assert decide(seen(2, working("a"), Pod("b", "new"), says=says)) == ()


def test_a_router_that_just_started_is_not_asked_who_is_missing() -> None:
    says = Fleet((RouterView("a", {}, knows_all=False),))
    assert decide(seen(1, working("a"), says=says)) == ()
    assert report(seen(1, working("a"), says=says)).reason == "NoRouter"


def test_a_worker_that_every_router_has_lost_is_out_of_service() -> None:
    assert decide(seen(1, working("a"), says=fleet())) == (SetStanding("a", Standing.OUT),)


def test_without_any_router_a_pool_may_grow_and_nothing_else() -> None:
    silent = Fleet(silent=("10.0.0.1:50051: no route",))
    assert decide(seen(3, working("a"), says=silent)) == (SetReplicas(3),)
    assert decide(seen(0, working("a"), says=silent)) == ()
    assert "no route" in report(seen(0, working("a"), says=silent)).message


def test_a_drain_holds_the_next_one_up_only_for_its_grace_period() -> None:
    leaving = Pod("c", "new", IN, terminating=True)
    draining = Fleet((RouterView("a", {"a": Worker(), "b": Worker(), "c": Worker(draining=True)}),))
    view = seen(1, working("a"), working("b"), leaving, says=draining, replicas=2)
    assert decide(view) == ()
    late = replace(view, pods=(*view.pods[:2], replace(leaving, overdue=True)))
    assert decide(late) == (SetStanding("a", Standing.RETIRING),)
    assert "beyond the grace period" in report(late).message


def test_routers_drain_what_is_being_deleted() -> None:
    leaving = Pod("b", "new", IN, terminating=True)
    view = seen(1, working("a"), leaving, says=fleet(a=0, b=7), replicas=1)
    assert decide(view) == (DrainWorker("b"),)
    assert not report(view).is_ready


def test_a_worker_of_another_model_is_named_with_its_last_words() -> None:
    foreign = Pod("b", "new", trouble="fingerprint is x; accepted: y", foreign=True)
    said = report(seen(2, working("a", "old"), foreign, says=fleet(a=0), replicas=1))
    assert said.reason == "MixedFingerprints"
    assert "fingerprint is x" in said.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deployment": None}, "NoDeployment"),
        ({"shared": ("other",)}, "SharedDeployment"),
        ({"deployment": Deployment(1, "new", gated=False)}, "NoReadinessGate"),
        ({"deployment": Deployment(1, "new", rolls=False)}, "WrongStrategy"),
        ({"fleet": Fleet((RouterView("a", {}, "x"), RouterView("b", {}, "y")))}, "MixedFingerprints"),
    ],
)
def test_an_obstacle_stops_every_step_and_is_reported(change: dict, reason: str) -> None:
    view = replace(seen(5, working("a"), says=fleet(a=0)), **change)
    assert decide(view) == ()
    said = report(view)
    assert (said.reason, said.is_ready) == (reason, False)
    assert said.message
