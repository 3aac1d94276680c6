"""Whatever the order of events, rollouts and scalings keep their promises and come to an end."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from deploy.controller.decide import AT_ONCE
from tests.deploy.controller.model_cluster import Model

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 1 << 32)
ROUNDS = 400


@given(SIZES, st.integers(1, 4), SEEDS)
def test_a_rollout_never_has_fewer_workers_than_before_and_ends(replicas: int, surge: int, seed: int) -> None:
    model = Model.settled(replicas, max_surge=surge)
    model.revision = "2"
    for _ in model.run(random.Random(seed), ROUNDS):
        assert model.serving() >= replicas
        assert model.leaving() <= max(1, replicas // AT_ONCE)
    assert model.report().is_ready
    assert {pod.revision for pod in model.pods.values()} == {"2"}
    assert all(chosen for _, chosen in model.deleted)


@given(SIZES, SEEDS)
def test_a_rollout_without_spare_nodes_misses_one_worker_at_most(replicas: int, seed: int) -> None:
    model = Model.settled(replicas, max_surge=0, max_unavailable=1)
    model.revision = "2"
    for _ in model.run(random.Random(seed), ROUNDS):
        assert model.serving() >= replicas - 1
    assert model.report().is_ready
    assert {pod.revision for pod in model.pods.values()} == {"2"}


@given(SIZES, st.integers(0, 12), SEEDS)
def test_scaling_goes_one_by_one_and_ends_at_the_target(replicas: int, target: int, seed: int) -> None:
    model = Model.settled(replicas, target=target)
    for _ in model.run(random.Random(seed), ROUNDS):
        assert model.serving() >= min(replicas, target)
        assert model.leaving() <= max(1, replicas // AT_ONCE)
    assert model.report().is_ready
    assert len(model.pods) == target
    assert all(chosen for _, chosen in model.deleted)


@given(SIZES, SEEDS, st.data())
def test_whatever_is_wanted_meanwhile_the_last_wish_is_reached(
    replicas: int, seed: int, data: st.DataObject
) -> None:
    model, rng = Model.settled(replicas), random.Random(seed)
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        model.target = data.draw(st.integers(0, 12), label="target")
        model.revision = data.draw(st.sampled_from(["1", "2", "3"]), label="revision")
        for _ in model.run(rng, data.draw(st.integers(0, 20), label="rounds")):
            pass
    for _ in model.run(rng, 2 * ROUNDS):
        pass  # until nothing moves any more
    assert model.report().is_ready
    assert len(model.pods) == model.target
    assert {pod.revision for pod in model.pods.values()} <= {model.revision}


@given(SIZES, SEEDS)
def test_a_revision_that_never_serves_replaces_nothing(replicas: int, seed: int) -> None:
    model = Model.settled(replicas)
    model.revision, model.broken = "2", {"2"}
    for _ in model.run(random.Random(seed), 40):
        assert model.serving() == replicas
        assert not any(pod.revision == "1" for pod, _ in model.deleted)
    assert model.report().reason == "RollingOut"


@given(SIZES, SEEDS, st.integers(0, 60))
def test_ready_is_said_only_of_what_routers_list(replicas: int, seed: int, target: int) -> None:
    model = Model.settled(replicas, target=min(target, 12))
    model.revision = "2"
    for _ in model.run(random.Random(seed), 30):
        if model.report().is_ready:
            listed = {name for view in model.views for name in view}
            assert listed == {pod.name for pod in model.live("2")}
            assert len(listed) == model.target
