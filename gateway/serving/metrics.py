"""The gateway's metrics, each defined once.

TTFT: from the head of an HTTP request to the first token written to its caller; only streams have one.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GatewayMetrics:
    """The metrics of one gateway, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, namespace="baton_http", registry=self.registry)
        gauge = partial(Gauge, namespace="baton_http", registry=self.registry)
        histogram = partial(Histogram, namespace="baton_http", registry=self.registry, buckets=SECONDS)
        self.requests = counter(
            "requests", "HTTP requests by endpoint and status; 499: the caller left", ["endpoint", "status"]
        )
        self.disconnects = counter(
            "disconnects", "Requests whose caller left before their response was complete", ["endpoint"]
        )
        self.tokens = counter("relayed_tokens", "Tokens written to callers", ["endpoint"])
        self.ttft = histogram(
            "ttft_seconds",
            "From the head of a request to the first token written; streams only",
            ["endpoint"],
        )
        self.duration = histogram(
            "request_seconds", "From the head of a request to the end of its response", ["endpoint"]
        )
        self.open_requests = gauge("open_requests", "Requests whose response is not complete")
        self.open_streams = gauge("open_streams", "Streams of events that are open")
        self.open_connections = gauge("open_connections", "Connections of callers")
