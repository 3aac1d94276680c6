"""The record of each HTTP request: counted, and logged as one line at its end. Prompts are never logged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.errors import BatonError
from gateway.serving.bodies import IGNORED_HEADER, Ignored, ignored
from gateway.serving.errors import ApiError, Problem, drained, problem_of
from gateway.serving.fleet import caller_span
from gateway.serving.metrics import GatewayMetrics
from runtime.tracing.context import SpanContext, traceparent_in
from runtime.tracing.span import Kind, Span, Value
from runtime.tracing.tracer import Tracer

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a caller who left. Nobody receives it."""
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_PROBES = frozenset({"/health"})
"""Endpoints without a line in the log."""


@dataclass(slots=True)
class RequestRecord:
    """The course of one request so far."""

    began_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    num_tokens: int = 0
    status: int = 0
    request_id: str = ""
    is_stream: bool = False
    is_complete: bool = False
    ending: asyncio.Future[None] | None = None
    """Done when the drain time of the gateway is over, so that this request has to end."""
    on_start: Callable[[], None] | None = None
    """Called when the response begins."""
    ignored: str = ""
    """The paths of the request's parts that the fleet does not serve."""
    failed_with: str = ""
    """Why the fleet failed, which callers are not told."""
    span: SpanContext | None = None
    """Its span, if it is traced."""

    def relayed(self, num_tokens: int) -> None:
        """Count tokens that are about to be written."""
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.num_tokens += num_tokens


record: ContextVar[RequestRecord | None] = ContextVar("record", default=None)
"""The record of the HTTP request that is being served; tasks that a request starts inherit it."""


def problem_to_tell(error: BatonError | ApiError, param_of: Callable[[str], str]) -> Problem:
    """Return what an error means to the caller. Where the fleet failed, the log says with what."""
    problem, known = problem_of(error, param_of), record.get()
    if known is not None and problem.status >= 500:
        known.failed_with = str(error)
    return problem


def ending() -> asyncio.Future[None] | None:
    """Return what is done when the request that is being served has to end."""
    known = record.get()
    return None if known is None else known.ending


def raise_if_over() -> None:
    """Raise `ApiError` in place of a cancellation, if its reason is that the gateway has to leave."""
    over = ending()
    if over is not None and over.done():
        raise drained()


class Requests:
    """Serves `app`, with a record of each request. An error that nobody expected ends only its request."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: GatewayMetrics,
        ending: asyncio.Future[None] | None = None,
        *,
        strict_fields: bool,
        tracer: Tracer | None = None,
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._metrics = metrics
        self._ending = ending
        self._open: set[asyncio.Future[None]] = set()
        """One for each request: those of a common one would look through all its callbacks at each end."""
        if ending is not None:
            ending.add_done_callback(self._end_open)
        self._strict_fields = strict_fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ending = self._ending
        if ending is not None and not ending.done():
            ending = ending.get_loop().create_future()
            self._open.add(ending)
        known, metrics = RequestRecord(ending=ending), self._metrics
        record.set(known)
        if self._tracer is not None:
            span = self._tracer.begin(traceparent_in(scope["headers"]))
            caller_span.set(span.traceparent)
            known.span = span if span.is_sampled else None
        left_out = Ignored(self._strict_fields)
        ignored.set(left_out)

        def observed(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                known.status = message["status"]
                if known.on_start is not None:
                    known.on_start()
                known.is_stream = _STREAM in message["headers"]
                metrics.open_streams.inc(known.is_stream)
                known.request_id = dict(message["headers"]).get(b"x-request-id", b"").decode("latin-1")
                known.ignored = str(left_out)
                if known.ignored:
                    told = (IGNORED_HEADER, known.ignored.encode())
                    message["headers"] = [*message["headers"], told]
            elif not message.get("more_body", False):
                known.is_complete = True
            return send(message)

        metrics.open_requests.inc()
        try:
            await self._app(scope, receive, observed)
        except Exception:  # the application has logged it and responded, if it still could
            if not known.status:
                raise
        finally:
            metrics.open_requests.dec()
            metrics.open_streams.dec(known.is_stream)
            if ending is not None:
                self._open.discard(ending)
            self._end(scope, known)

    def _end_open(self, _: asyncio.Future[None]) -> None:
        for ending in self._open:
            if not ending.done():
                ending.set_result(None)

    def _end(self, scope: Scope, known: RequestRecord) -> None:
        metrics, now = self._metrics, time.monotonic()
        route = scope.get("route")
        endpoint = "other" if route is None else str(route.path)
        left = not known.is_complete or known.status == CLIENT_CLOSED_REQUEST
        metrics.requests.labels(endpoint, str(known.status or CLIENT_CLOSED_REQUEST)).inc()
        metrics.duration.labels(endpoint).observe(now - known.began_at)
        if left:
            metrics.disconnects.labels(endpoint).inc()
        if known.num_tokens:
            metrics.tokens.labels(endpoint).inc(known.num_tokens)
        line: dict[str, Any] = {}
        if known.is_stream and known.first_token_at is not None:
            ttft_s = known.first_token_at - known.began_at
            metrics.ttft.labels(endpoint).observe(ttft_s)
            line["ttft_ms"] = round(1000 * ttft_s, 1)
        if known.ignored:
            line["ignored"] = known.ignored
        if known.failed_with:
            line["failed_with"] = known.failed_with
        if endpoint in _PROBES:
            return
        if self._tracer is not None and known.span is not None:
            self._tracer.export([_span(scope["method"], endpoint, known, known.span, now)])
        structlog.get_logger().info(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=known.status or CLIENT_CLOSED_REQUEST,
            ms=round(1000 * (now - known.began_at), 1),
            tokens=known.num_tokens,
            left=left,
            request_id=known.request_id,
            **line,
        )


def _span(method: str, endpoint: str, known: RequestRecord, context: SpanContext, now: float) -> Span:
    """Return the span of a request that is over."""
    status = known.status or CLIENT_CLOSED_REQUEST
    attributes: dict[str, Value] = {
        "http.request.method": method,
        "http.route": endpoint,
        "http.response.status_code": status,
    }
    if known.num_tokens:
        attributes["gen_ai.usage.output_tokens"] = known.num_tokens
    if known.first_token_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = known.first_token_at - known.began_at
    error = known.failed_with or f"status {status}" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    return Span(context, f"{method} {endpoint}", known.began_at, now, attributes, Kind.SERVER, error)
