from __future__ import annotations

import itertools
import math
import random

import pytest
from structlog.testing import capture_logs

from engine.core.commands import Command, SetCost
from engine.core.report import Load, StepReport
from scheduling.cost.cost_estimator import FIT_EVERY_UNTRUSTED, WINDOW, CostEstimator
from scheduling.cost_model import NUM_COEFFICIENTS, UNKNOWN_COST, CostModel, Sample
from tests.scheduling.cost.steps import DEMO, grid, measure, slower
from tests.worker.client import WorkClient, spec_of
from tests.worker.conftest import Pair
from worker import costs
from worker.costs import Costs
from worker.metrics import WorkerMetrics

LOAD = Load(
    step=1, running=0, waiting=0, pending_prefill_tokens=0, free_blocks=8, cached_blocks=0, context_tokens=0
)


class Scene:
    """A worker's costs, whose engine is a list."""

    def __init__(self, model: CostModel = DEMO) -> None:
        self.engine: list[Command] = []
        self.metrics = WorkerMetrics()
        samples = measure(model) if model.is_trusted else []
        self.costs = Costs(CostEstimator(model, samples), self.engine.append, self.metrics)

    @property
    def told(self) -> list[CostModel]:
        return [command.cost for command in self.engine if isinstance(command, SetCost)]

    async def step(self, sample: Sample) -> None:
        shape, seconds = sample
        self.costs.observe(StepReport(load=LOAD, shape=shape, step_seconds=seconds))
        await self.costs.settle()

    async def serve(self, model: CostModel, count: int) -> None:
        """Observe so many steps, each as long as `model` says."""
        rng = random.Random(count)
        for shape in rng.choices(grid(), k=count):
            await self.step((shape, model.predict(shape)))

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return a scene with time for one fit, however long a test takes on a busy machine."""
    monkeypatch.setattr(costs, "MIN_BETWEEN_FITS_S", 3600.0)
    return Scene()


async def test_steps_as_predicted_tell_the_engine_nothing_new(scene: Scene) -> None:
    await scene.serve(DEMO, WINDOW - 1)
    assert scene.engine == []
    assert scene.metric("baton_worker_cost_trusted") == 1


async def test_a_machine_that_slows_down_is_distrusted_fitted_and_trusted(scene: Scene) -> None:
    with capture_logs() as logs:
        await scene.serve(slower(DEMO, 1.5), WINDOW)
    assert [model.is_trusted for model in scene.told][:2] == [False, True]
    assert [line["event"] for line in logs][:2] == ["cost_not_trusted", "cost_trusted"]
    assert scene.costs.model is scene.told[-1]
    for shape in grid():
        assert scene.told[-1].predict(shape) == pytest.approx(1.5 * DEMO.predict(shape), rel=0.1)
    assert scene.metric("baton_worker_cost_trusted") == 1
    assert scene.metric("baton_worker_cost_distrusts_total") == 1
    assert scene.metric("baton_worker_cost_fits_total") == 1


async def test_between_two_fits_there_is_time(scene: Scene) -> None:
    """However fast steps come and however wrong they are."""
    for factor in (3.0, 9.0, 27.0):
        await scene.serve(slower(DEMO, factor), WINDOW)
    assert scene.metric("baton_worker_cost_fits_total") == 1


async def test_a_loss_of_trust_is_said_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MIN_BETWEEN_FITS_S", math.inf)
    with capture_logs() as logs:
        await scene.serve(slower(DEMO, 3.0), 3 * WINDOW)
    assert [line["event"] for line in logs] == ["cost_not_trusted"]
    assert scene.metric("baton_worker_cost_trusted") == 0


async def test_what_nobody_measured_is_learnt_from_steps() -> None:
    scene = Scene(UNKNOWN_COST)
    assert scene.metric("baton_worker_cost_trusted") == 0
    await scene.serve(DEMO, FIT_EVERY_UNTRUSTED)
    assert scene.costs.model.is_trusted
    assert scene.metric("baton_worker_cost_trusted") == 1


async def test_reports_without_a_step_or_of_a_failed_one_are_ignored(scene: Scene) -> None:
    shape = grid()[0]
    for _ in range(2 * WINDOW):
        scene.costs.observe(StepReport(load=LOAD))
        scene.costs.observe(StepReport(load=LOAD, shape=shape, step_seconds=9.0, step_error="Traceback"))
    assert scene.costs.model == DEMO
    assert scene.engine == []


@pytest.mark.integration
async def test_no_router_is_left_with_old_costs(pair: Pair) -> None:
    """Costs are published after two windows of steps at the latest; a later router starts with them."""
    async with WorkClient(pair.target.address) as router:

        async def generate() -> None:
            spec = spec_of([5, 6, 7], target=router.welcome.incarnation, max_tokens=200)
            await router.until_finished(await router.decode(spec))

        assert len(router.costs[0].coefficients) == NUM_COEFFICIENTS
        for _ in range(3):
            await generate()
        assert len(router.costs) > 1
        assert all(entry != two for entry, two in itertools.pairwise(router.costs))
        async with WorkClient(pair.target.address, "late") as late:
            await generate()  # whose reports bring what a fit has found meanwhile
            assert late.costs[0] in router.costs


async def test_a_fit_that_breaks_keeps_the_last_good_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(samples: list[Sample]) -> CostModel:
        raise ArithmeticError("SVD did not converge")

    monkeypatch.setattr(costs, "fit", broken)
    with capture_logs() as logs:
        await scene.serve(slower(DEMO, 2), WINDOW)
    assert scene.costs.model.coefficients == DEMO.coefficients
    assert not scene.costs.model.is_trusted
    assert "cost_fit_failed" in [line["event"] for line in logs]
    assert scene.metrics.registry.get_sample_value("baton_loop_errors_total", {"where": "cost_fit"}) == 1
