"""docs/metrics.md: every metric of every service, read from the registries that are scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gateway.picker.metrics import PickerMetrics
from gateway.serving.metrics import GatewayMetrics
from router.links.metrics import RouterMetrics
from runtime.process.event_loop import measure_loop
from runtime.process.metric_names import Renamed
from tools.document.markdown import table
from worker.metrics import WorkerMetrics

HEADER = """# Metrics

Every router, worker and gateway serves Prometheus metrics over HTTP, at the port of `--metrics-port`. Port 0,
the default, takes a free one, which the service logs at its start. `make docs` generates this page from the
code that defines the metrics, and a test fails when the two differ.

- **TTFT** is the time from receipt at the router to the first token, waiting included. A gateway counts it
  from the head of the HTTP request to the first token written to the caller.
- **ITL** is each gap between two tokens. **TPOT** is the mean of the gaps of one request.
- **Goodput** counts requests that met every SLO they stated.

Those of a router that the OpenTelemetry conventions for generative AI name are served under their names, too
(`gen_ai_server_...`), with the model as `gen_ai_request_model`. Requests of all outcomes count; the bounds of
buckets are Baton's. With `--metric-names vllm`, routers and workers also serve what vLLM measures under its
names (`vllm:...`, with `model_name`), for autoscalers, endpoint pickers, dashboards and benchmark tools that
look for them. They are aliases: a tool that adds up the pods of a fleet gets the fleet's values, because a
router counts what waits in the queue and a worker what waits in its own. `promtool check metrics` objects to
the colon in these names, as it does for vLLM, and to nothing else.

Counters only grow; their rate is what matters. A histogram has the series `_bucket`, `_sum` and `_count`.
Each service also exports `process_cpu_seconds_total`, `process_resident_memory_bytes` and the other
`process_` metrics of the Prometheus client.

"""
_PREFIXES = ("baton_", "gen_ai_", "vllm:")
_UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens", "blocks": "blocks"}


def text() -> str:
    """Return the page."""
    router, worker = RouterMetrics(), WorkerMetrics()
    router.add_gen_ai_names("")
    router.add_vllm_names("")
    worker.add_vllm_names("", 16, 1, lambda: 1)
    sections = {
        "Routers": router.registry,
        "Workers": worker.registry,
        "Gateways": GatewayMetrics().registry,
        "Endpoint pickers": PickerMetrics().registry,
        "All of them": asyncio.run(_shared()),
    }
    header = ("Metric", "Type", "Labels", "Unit", "Meaning")
    return HEADER + "\n".join(
        f"## {title}\n\n" + table(header, _rows(registry)) for title, registry in sections.items()
    )


async def _shared() -> CollectorRegistry:
    registry = CollectorRegistry()
    measure_loop(registry).stop()
    return registry


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    for collector in registry._collector_to_names:  # noqa: SLF001 - the library's only list of collectors
        for metric in collector.collect():
            if metric.name.startswith(_PREFIXES):
                name = f"{metric.name}_total" if metric.type == "counter" else metric.name
                labels = ", ".join(f"`{label}`" for label in _labels(collector)) or "–"
                yield f"`{name}`", metric.type, labels, _unit(metric.name), metric.documentation


def _labels(collector: Collector) -> tuple[str, ...]:
    labels = collector.labels if isinstance(collector, Renamed) else getattr(collector, "_labelnames", ())
    return tuple(labels)


def _unit(name: str) -> str:
    return next((unit for word, unit in _UNITS.items() if word in name.split("_")), "–")
