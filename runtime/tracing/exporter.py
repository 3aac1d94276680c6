"""Sends spans to a collector by OTLP over gRPC, on a thread of its own.

Spans that wait are bounded. A collector that is away, hangs or is slow costs spans, which are counted in the
log, and nothing else: `put` only appends to a queue, and messages are made on the thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import structlog
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from runtime.tracing.settings import TracingSettings
from runtime.tracing.span import Span, Value

MAX_WAITING = 256
"""Requests whose spans wait to be sent; those of a further one are dropped."""
GATHER_S = 0.5
"""Spans that come within this time of each other are sent together."""
MAX_BATCH = 512
"""Spans of one message, and those of one request more."""
TIMEOUT_S = 10.0
"""The time for a message, and for a collector that is away to come back."""
CLOSE_S = 1.0
"""A process that ends waits this long for its last spans."""
_SCOPE = common_pb2.InstrumentationScope(name="baton")


class OtlpExporter:
    """Owns the connection to the collector."""

    def __init__(self, settings: TracingSettings, service: str, instance: str) -> None:
        own = {"service.name": service, "service.instance.id": instance}
        self._resource = resource_pb2.Resource(attributes=_attributes({**settings.resource, **own}))
        self._endpoint = settings.endpoint
        self._metadata = tuple(settings.headers.items())
        self._channel = _channel(settings)
        stub = trace_service_pb2_grpc.TraceServiceStub(self._channel)  # type: ignore[no-untyped-call]  # has no types
        self._export = stub.Export
        self._waiting: queue.Queue[Sequence[Span]] = queue.Queue(MAX_WAITING)
        self._num_dropped = 0
        """Requests whose spans found no room."""
        self._fails = False
        self._closing = threading.Event()
        # A daemon: a collector that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        """Take the spans of a request, or drop them where too many wait."""
        try:
            self._waiting.put_nowait(spans)
        except queue.Full:
            self._num_dropped += 1

    def close(self) -> None:
        """Send what waits for at most `CLOSE_S`, and stop."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._channel.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._closing.wait(GATHER_S)
            while batch := list(self._batch()):
                try:
                    self._send(batch)
                except Exception:  # noqa: BLE001 - a loop's top
                    if not self._closing.is_set():  # else the connection was closed under it
                        structlog.get_logger().exception("spans_not_sent")

    def _batch(self) -> Iterator[Span]:
        """Take the spans that wait, about `MAX_BATCH` at most."""
        num_spans = 0
        while num_spans < MAX_BATCH:
            try:
                spans = self._waiting.get_nowait()
            except queue.Empty:
                return
            num_spans += len(spans)
            yield from spans

    def _send(self, batch: Sequence[Span]) -> None:
        """Send a batch, which is dropped if that fails. Log when it begins to fail, and works again."""
        # Spans are timed by a clock that nobody can set, and are sent by the one that people read.
        offset_s = time.time() - time.monotonic()
        scope_spans = trace_pb2.ScopeSpans(scope=_SCOPE, spans=[_to_pb(span, offset_s) for span in batch])
        resource_spans = trace_pb2.ResourceSpans(resource=self._resource, scope_spans=[scope_spans])
        request = trace_service_pb2.ExportTraceServiceRequest(resource_spans=[resource_spans])
        reason = ""
        try:
            self._export(request, timeout=TIMEOUT_S, metadata=self._metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        if bool(reason) is not self._fails:
            self._fails = bool(reason)
            lost = {"requests_without_spans": self._num_dropped}
            if reason:
                structlog.get_logger().warning(
                    "spans_not_taken", collector=self._endpoint, reason=reason, **lost
                )
            else:
                structlog.get_logger().info("spans_taken_again", collector=self._endpoint, **lost)


def _channel(settings: TracingSettings) -> grpc.Channel:
    url = urlsplit(settings.endpoint)
    if url.scheme == "http":
        return grpc.insecure_channel(url.netloc)
    ca = Path(settings.certificate).read_bytes() if settings.certificate else None
    return grpc.secure_channel(url.netloc, grpc.ssl_channel_credentials(ca))


def _to_pb(span: Span, offset_s: float) -> trace_pb2.Span:
    own = span.context
    status = trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=span.error)
    return trace_pb2.Span(
        trace_id=own.trace_id.to_bytes(16, "big"),
        span_id=own.span_id.to_bytes(8, "big"),
        parent_span_id=own.parent_id.to_bytes(8, "big") if own.parent_id else b"",
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Value(f"SPAN_KIND_{span.kind.value}"),
        start_time_unix_nano=round((span.began_at + offset_s) * 1e9),
        end_time_unix_nano=round((span.ended_at + offset_s) * 1e9),
        attributes=_attributes(span.attributes),
        status=status if span.error else None,
    )


def _attributes(attributes: Mapping[str, Value]) -> list[common_pb2.KeyValue]:
    return [common_pb2.KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: Value) -> common_pb2.AnyValue:
    match value:
        case str():
            return common_pb2.AnyValue(string_value=value)
        case bool():
            return common_pb2.AnyValue(bool_value=value)
        case int():
            return common_pb2.AnyValue(int_value=value)
        case float():
            return common_pb2.AnyValue(double_value=value)
        case _:
            values = [common_pb2.AnyValue(string_value=each) for each in value]
            return common_pb2.AnyValue(array_value=common_pb2.ArrayValue(values=values))
