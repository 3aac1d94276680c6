"""A report is added to a worker's metrics."""

from __future__ import annotations

from engine.core.report import Load, StepReport
from scheduling.memory.tiers import Tier
from worker.metrics import WorkerMetrics

LOAD = Load(1, 0, 0, 0, 0, 0, 0)


def test_preempted_sequences_and_what_they_cost_are_counted() -> None:
    metrics = WorkerMetrics()
    metrics.observe(StepReport(load=LOAD, preempted=[4, 7]))
    metrics.observe(StepReport(load=LOAD, preempted=[4], recomputed_tokens=30))
    told = metrics.registry.get_sample_value
    assert told("baton_preempted_sequences_total") == 3
    assert told("baton_recomputed_tokens_total") == 30


def test_each_tier_has_counters_of_its_own() -> None:
    metrics = WorkerMetrics()
    metrics.count_tier(Tier.HOST, "kept", 2, 200)
    metrics.count_tier(Tier.HOST, "evicted", 1, 0)
    metrics.count_tier(Tier.DISK, "written", 1, 100)
    metrics.count_tier(Tier.DISK, "failed", 1, 0)

    def told(name: str, outcome: str) -> float | None:
        return metrics.registry.get_sample_value(f"baton_{name}_total", {"outcome": outcome})

    assert (told("kv_host_blocks", "kept"), told("kv_host_bytes", "kept")) == (2, 200)
    assert (told("kv_host_blocks", "evicted"), told("kv_host_bytes", "evicted")) == (1, None)
    assert (told("kv_disk_blocks", "written"), told("kv_disk_bytes", "written")) == (1, 100)
    assert told("kv_disk_blocks", "failed") is None
    assert metrics.registry.get_sample_value("baton_kv_disk_errors_total") == 1
