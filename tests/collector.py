"""A collector of traces made of OTLP's own protos: it keeps the spans that it is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2

from tests.patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it arrived; ids in hexadecimal digits."""

    service: str
    resource: dict[str, Any]
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    error: str


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans, or hangs until `go_on` is called."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._spans: list[Received] = []
        self._changed = threading.Condition()
        self._may_answer = threading.Event()
        self._called = threading.Event()
        self.address = ""
        self.metadata: dict[str, str | bytes] = {}
        """The metadata of the last call."""
        if not hangs:
            self._may_answer.set()

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.metadata = dict(context.invocation_metadata())
        self._called.set()
        self._may_answer.wait(PATIENCE_S)
        with self._changed:
            self._spans += _received(request)
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_until_called(self) -> None:
        assert self._called.wait(PATIENCE_S)

    def go_on(self) -> None:
        self._may_answer.set()

    def spans(self) -> list[Received]:
        with self._changed:
            return list(self._spans)

    def wait_for(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        """Return all spans once they meet a condition."""
        with self._changed:
            met = self._changed.wait_for(lambda: condition(self._spans), PATIENCE_S)
            assert met, [(span.service, span.name) for span in self._spans]
            return list(self._spans)


@contextmanager
def collecting(
    *, hangs: bool = False, credentials: grpc.ServerCredentials | None = None
) -> Iterator[Collector]:
    """Run a collector on a free port while the block lasts; with TLS if there are credentials."""
    collector = Collector(hangs=hangs)
    server = grpc.server(ThreadPoolExecutor(8))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    free = "127.0.0.1:0"
    port = server.add_secure_port(free, credentials) if credentials else server.add_insecure_port(free)
    collector.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.go_on()
        server.stop(None).wait()


def _received(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        named = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    named["service.name"],
                    named,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _values(span.attributes),
                    span.status.message,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
