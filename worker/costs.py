"""The costs of this worker's steps: observed on the event loop, fitted on a thread.

Observing a step takes some microseconds. A fit holds the interpreter lock for some milliseconds in all; it
runs rarely and on a thread of its own, so neither the event loop nor the step thread waits for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from engine.core.commands import Command, SetCost
from engine.core.report import StepReport
from scheduling.cost.cost_estimator import CostEstimator
from scheduling.cost.cost_fit import fit
from scheduling.cost_model import CostModel
from worker.metrics import WorkerMetrics

log = structlog.get_logger()

MIN_BETWEEN_FITS_S = 1.0


class Costs:
    """Owns the estimator. `model` is replaced when it changes; routers get it with their next report."""

    def __init__(
        self, estimator: CostEstimator, submit: Callable[[Command], None], metrics: WorkerMetrics
    ) -> None:
        self.model = estimator.model
        self._estimator = estimator
        self._submit = submit
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time
        self._last_fit_s = -MIN_BETWEEN_FITS_S
        self._fitting: asyncio.Task[None] | None = None
        metrics.observe_cost(self.model)

    def observe(self, report: StepReport) -> None:
        """Take in how long a step took; a failed step is ignored."""
        if report.shape is None or report.step_error:
            return
        self._publish(self._estimator.observe(report.shape, report.step_seconds))
        is_free = self._fitting is None or self._fitting.done()
        if self._estimator.needs_fit and is_free and self._clock() - self._last_fit_s >= MIN_BETWEEN_FITS_S:
            self._last_fit_s = self._clock()
            self._fitting = asyncio.create_task(self._fit())

    async def settle(self) -> None:
        """Return when no fit is under way."""
        if self._fitting is not None:
            await self._fitting

    async def _fit(self) -> None:
        samples = self._estimator.take_samples()
        try:
            fitted = await asyncio.to_thread(fit, samples, floor_s=self.model.chunk_floor_s)
        except Exception:  # a task's top: if the least squares fail, the last good fit stays
            log.exception("cost_fit_failed", samples=len(samples))
            self._metrics.loop_errors.labels("cost_fit").inc()
            return
        if fitted is not None:
            self._metrics.cost_fits.inc()
            self._publish(self._estimator.adopt(fitted))

    def _publish(self, model: CostModel | None) -> None:
        if model is None:
            return
        if model.is_trusted != self.model.is_trusted:
            self._metrics.cost_distrusts.inc(not model.is_trusted)
            band = {"q10": model.ratio_q10, "q50": model.ratio_q50, "q95": model.ratio_q95}
            if model.is_trusted:
                log.info("cost_trusted", **band)
            else:
                log.warning("cost_not_trusted", consequence="steps keep to a fixed token budget", **band)
        self.model = model
        self._metrics.observe_cost(model)
        self._submit(SetCost(model))
