"""The router's metrics, each defined once.

TTFT: from receipt at the router to the first token, queueing included. ITL: each gap between tokens of a
choice. TPOT: per request, the mean gap after the first token; undefined for one token. Goodput: requests that
met every SLO they stated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core.model.actions import (
    AttemptFailed,
    GroupMigrated,
    GroupPreempted,
    Outcome,
    PromiseBroken,
    Relay,
    RequestEnded,
    RequestRefused,
    RequestShed,
    attained_by,
)
from runtime.process.metric_names import Renamed, gen_ai_labels, vllm_labels
from scheduling.request import FinishReason

NAMESPACE = "baton"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GapHistogram(Collector):
    """A histogram for the token path. The library's own costs a microsecond or two per observation."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe_all(self, gaps_s: Sequence[float | None]) -> None:
        """Count gaps; first tokens have none."""
        for gap_s in gaps_s:
            if gap_s is not None:
                self._counts[bisect_left(SECONDS, gap_s)] += 1
                self._sum += gap_s

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram for a scrape."""
        buckets, total = [], 0
        for bound, count in zip((*SECONDS, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, self._sum)
        yield family


class RouterMetrics:
    """The metrics of one router, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.ttft = self._by_class(
            "ttft_seconds", "From receipt at the router to the first token, waiting included"
        )
        self.tpot = self._by_class(
            "tpot_seconds", "Mean time between tokens after the first, one value for each request"
        )
        self.e2e = self._by_class("e2e_seconds", "From receipt at the router to the end of the request")
        self.queue = self._by_class("queue_seconds", "From receipt at the router to dispatch to a worker")
        self.itl = GapHistogram(f"{NAMESPACE}_itl_seconds", "Each gap between two tokens of a choice")
        self.registry.register(self.itl)
        counter = partial(Counter, namespace=NAMESPACE, registry=self.registry)
        gauge = partial(Gauge, namespace=NAMESPACE, registry=self.registry)
        self.requests = counter(
            "requests",
            "Requests by outcome: finished, failed, deadline, cancelled, or the error that refused them",
            ["outcome"],
        )
        self.relayed = counter("relayed_tokens", "Tokens relayed to clients")
        self.goodput = counter("goodput", "Requests that met every SLO they stated")
        self.promises = counter(
            "promises",
            "Promises of accepted requests; promise: ttft, tpot, itl; outcome: kept, broken",
            ["promise", "outcome"],
        )
        self.retries = counter("retries", "Attempts that failed and were followed by another one")
        self.let_go = counter(
            "let_go",
            "Requests that lost something to others; what: shed, promise_given_up, preempted, migrated",
            ["what"],
        )
        self.loop_errors = counter(
            "loop_errors", "Unexpected errors, by the place that caught them", ["where"]
        )
        self._waiting = gauge("waiting_requests", "Choices in the fleet's queue that came by this router")
        self.workers = gauge("connected_workers", "Workers whose stream to this router is open")
        self.lost_workers = counter(
            "lost_workers", "Workers lost after they had joined: their stream broke or fell silent"
        )
        self.stalled = gauge(
            "stalled_workers",
            "Workers given nothing new, because a step does not end or the event loop is held up",
        )
        self.clock_offset = gauge(
            "clock_offset_seconds", "How far this machine's clock is ahead of Redis', compared once a minute"
        )
        self.loop_lag = gauge(
            "loop_lag_seconds", "Delay of the event loop, smoothed; above 0.5 new requests are refused"
        )

    def add_waiting(self, num_waiting: Callable[[], int]) -> None:
        """Read how many wait at each scrape."""
        self._waiting.set_function(num_waiting)

    def add_gen_ai_names(self, model_name: str) -> None:
        """Serve what the OpenTelemetry conventions name, under their names too."""
        labels = gen_ai_labels(model_name)
        for source, name in (
            (self.e2e, "request_duration"),
            (self.ttft, "time_to_first_token"),
            (self.tpot, "time_per_output_token"),
        ):
            self.registry.register(Renamed(source, f"gen_ai_server_{name}_seconds", labels))

    def add_vllm_names(self, model_name: str) -> None:
        """Serve what a router measures under vLLM's names too; its workers serve the rest."""
        labels = vllm_labels(model_name)
        for source, name in (
            (self._waiting, "num_requests_waiting"),
            (self.relayed, "generation_tokens"),
            (self.ttft, "time_to_first_token_seconds"),
            (self.itl, "inter_token_latency_seconds"),
            (self.tpot, "request_time_per_output_token_seconds"),
            (self.e2e, "e2e_request_latency_seconds"),
            (self.queue, "request_queue_time_seconds"),
        ):
            self.registry.register(Renamed(source, f"vllm:{name}", labels))

    def _by_class(self, name: str, documentation: str) -> Histogram:
        return Histogram(
            name, documentation, ["slo_class"], buckets=SECONDS, namespace=NAMESPACE, registry=self.registry
        )

    def relayed_step(self, relay: Relay) -> None:
        """Count one step's tokens."""
        self.relayed.inc(len(relay.token_ids))
        self.itl.observe_all(relay.gaps_s)

    def refused(self, action: RequestRefused) -> None:
        """Count a refusal by its kind."""
        self.requests.labels(type(action.error).__name__).inc()

    def attempt_failed(self, action: AttemptFailed) -> None:
        """Count an attempt that is tried again."""
        if not action.final:
            self.retries.inc()

    def happened(self, action: RequestShed | PromiseBroken | GroupPreempted | GroupMigrated) -> None:
        """Count what a request lost to others."""
        self.let_go.labels(_LOSSES[type(action)]).inc()

    def ended(self, action: RequestEnded) -> None:
        """Count a request and where its time went."""
        outcome, marks = action.outcome, action.outcome.marks
        name = outcome.slo_class.name.lower()
        self.requests.labels(_outcome_name(outcome)).inc()
        self.queue.labels(name).observe(marks.dispatched_at - marks.received_at)
        self.e2e.labels(name).observe(marks.ended_at - marks.received_at)
        if outcome.has_tokens:
            self.ttft.labels(name).observe(marks.first_token_at - marks.received_at)
        if outcome.tpot_s is not None:
            self.tpot.labels(name).observe(outcome.tpot_s)
        if is_good(outcome):
            self.goodput.inc()
        if FinishReason.CANCELLED not in outcome.reasons:
            self._count_promises(outcome)

    def _count_promises(self, outcome: Outcome) -> None:
        promise, was_kept = outcome.promise, attained_by(outcome)
        for name, limit_ms, was_met in (
            ("ttft", promise.ttft_ms, was_kept.ttft and outcome.has_tokens),
            ("tpot", promise.tpot_ms, was_kept.tpot),
            ("itl", promise.itl_ms, was_kept.itl),
        ):
            if limit_ms is not None and not promise.at_risk:
                self.promises.labels(name, "kept" if was_met else "broken").inc()


_LOSSES: dict[type, str] = {
    RequestShed: "shed",
    PromiseBroken: "promise_given_up",
    GroupPreempted: "preempted",
    GroupMigrated: "migrated",
}


def is_good(outcome: Outcome) -> bool:
    """Return whether a request was not cut off and met every SLO that it stated."""
    cut_off = {FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.FAILED}
    if cut_off & set(outcome.reasons):
        return False
    return attained_by(outcome).all


def _outcome_name(outcome: Outcome) -> str:
    for reason in (FinishReason.FAILED, FinishReason.DEADLINE, FinishReason.CANCELLED):
        if reason in outcome.reasons:
            return reason.name.lower()
    return "finished"
