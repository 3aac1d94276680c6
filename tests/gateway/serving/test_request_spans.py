"""The span of an HTTP request: below its caller's, and above what the router makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.v1 import inference_pb2
from baton.wire.many import MultiplexedTransport
from gateway.serving.fleet import CallerCredentials
from gateway.serving.metrics import GatewayMetrics
from gateway.serving.request_log import Requests
from runtime.tracing.context import read_traceparent
from runtime.tracing.span import Kind
from runtime.tracing.tracer import Tracer
from tests.tracing import Kept

CALLER = "00f067aa0ba902b7"
SAMPLED = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{CALLER}-01".encode()
HEADER = b"traceparent"


class Scene:
    """Requests to an application that calls a router, as far as the credentials of that call."""

    def __init__(self, status: int = 200, ratio: float = 0.0) -> None:
        self.kept = Kept()
        self.shown: list[dict[str, str]] = []
        self._status = status
        app = Starlette(routes=[Route("/v1/completions", self._call), Route("/health", self._call)])
        tracer = Tracer(self.kept, ratio)
        self.requests = Requests(app, GatewayMetrics(), strict_fields=False, tracer=tracer)

    async def _call(self, _: Request) -> Response:
        self.shown.append(dict(CallerCredentials().metadata()))
        return Response(status_code=self._status)

    async def get(self, path: str, *headers: tuple[bytes, bytes]) -> None:
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": list(headers)}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            pass

        await self.requests(scope, receive, send)


async def test_the_span_goes_on_to_the_router() -> None:
    scene = Scene()
    await scene.get("/v1/completions", (HEADER, SAMPLED))
    (span,) = scene.kept.spans
    assert (span.name, span.kind, span.error) == ("GET /v1/completions", Kind.SERVER, "")
    assert span.context.parent_id == int(CALLER, 16)
    assert span.attributes["http.response.status_code"] == 200
    assert scene.shown == [{"traceparent": span.context.traceparent}]


@pytest.mark.parametrize(
    "headers",
    [(), ((HEADER, b"malformed"),), ((HEADER, SAMPLED),) * 2, ((HEADER, SAMPLED + b"0" * 60_000),)],
)
async def test_without_one_good_header_the_ratio_decides_for_the_router_too(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    scene = Scene()
    await scene.get("/v1/completions", *headers)
    assert not scene.kept.spans
    told = read_traceparent(scene.shown[0]["traceparent"])
    assert told is not None
    assert not told.is_sampled


async def test_a_failure_of_the_fleet_is_one_of_the_span() -> None:
    scene = Scene(status=503, ratio=1.0)
    await scene.get("/v1/completions")
    assert [span.error for span in scene.kept.spans] == ["status 503"]


async def test_probes_are_not_traced() -> None:
    scene = Scene(ratio=1.0)
    await scene.get("/health")
    assert not scene.kept.spans


async def test_a_traced_generation_shares_a_call_with_others() -> None:
    class Traced(CallerCredentials):
        def metadata(self) -> tuple[tuple[str, str], ...]:
            return (("traceparent", SAMPLED.decode()),)

    transport = MultiplexedTransport("127.0.0.1:1", Traced())
    command = transport._command(inference_pb2.GenerateRequest())
    assert command is not None
    assert command.traceparent == SAMPLED.decode()
    await transport.close()
