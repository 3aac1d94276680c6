"""The picker's metrics, each defined once."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from gateway.picker.decision import Decision
from gateway.serving.errors import Problem


class PickerMetrics:
    """The metrics of one endpoint picker, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.decisions = Counter(
            "baton_picker_decisions",
            "HTTP requests by what the picker said: picked, or the code of its own response",
            ["decision"],
            registry=self.registry,
        )
        self.gateways = Gauge("baton_picker_gateways", "Gateways that serve", registry=self.registry)

    def decided(self, decision: Decision) -> None:
        self.decisions.labels(decision.code if isinstance(decision, Problem) else "picked").inc()
