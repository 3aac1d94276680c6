"""A report is added to a worker's metrics."""

from __future__ import annotations

from engine.core.report import Load, StepReport
from worker.metrics import WorkerMetrics

LOAD = Load(1, 0, 0, 0, 0, 0, 0)


def test_preempted_sequences_and_what_they_cost_are_counted() -> None:
    metrics = WorkerMetrics()
    metrics.observe(StepReport(load=LOAD, preempted=[4, 7]))
    metrics.observe(StepReport(load=LOAD, preempted=[4], recomputed_tokens=30))
    told = metrics.registry.get_sample_value
    assert told("baton_preempted_sequences_total") == 3
    assert told("baton_recomputed_tokens_total") == 30
