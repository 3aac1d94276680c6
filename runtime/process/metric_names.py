"""Metrics under the names that other projects' tools look for, made from our own at each scrape.

The OpenTelemetry conventions for generative AI name what a server measures of a request
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/); vLLM's names are those that autoscalers,
endpoint pickers, dashboards and benchmark tools of others read. Between scrapes, neither costs anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

METRIC_NAMES = ("own", "vllm")
"""Values of --metric-names: our names and those of OpenTelemetry, or vLLM's as well."""
_BOUND = "le"


def gen_ai_labels(model_name: str) -> dict[str, str]:
    """Return the attributes that the conventions require of each metric."""
    return {
        "gen_ai_operation_name": "text_completion",
        "gen_ai_provider_name": "baton",
        "gen_ai_request_model": model_name,
    }


def vllm_labels(model_name: str) -> dict[str, str]:
    """Return the labels by which vLLM's metrics are selected."""
    return {"model_name": model_name}


class Renamed(Collector):
    """A metric under another name and with other labels; the values of its own labels are added up."""

    def __init__(self, source: Collector, name: str, labels: dict[str, str]) -> None:
        self._source = source
        self._name = name
        self.labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for a scrape."""
        for metric in self._source.collect():
            sums: dict[tuple[str, str], float] = {}
            for sample in metric.samples:
                suffix, bound = sample.name.removeprefix(metric.name), sample.labels.get(_BOUND, "")
                if suffix != "_created":
                    sums[suffix, bound] = sums.get((suffix, bound), 0.0) + sample.value
            documentation = f"The same as {metric.name}, over all of its labels"
            renamed = Metric(self._name, documentation, metric.type)
            for (suffix, bound), value in sums.items():
                labels = self.labels | ({_BOUND: bound} if bound else {})
                renamed.add_sample(self._name + suffix, labels, value)
            yield renamed
