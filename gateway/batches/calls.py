"""Requests to the gateway's own application: a line of a batch has the reply that a caller would get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import ASGIApp, Message

from gateway.serving.fleet import acting_tenant

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request: its status, its headers and its JSON body."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def retry_after_s(self) -> float:
        """When to send the request again."""
        return float(self.headers.get("retry-after-ms", 1000)) / 1000


async def call(
    app: ASGIApp, url: str, body: Mapping[str, Any], headers: Mapping[str, str], tenant: str
) -> Reply:
    """Post a body to the application, as this tenant by the gateway's own credential.

    An exception of the application is a reply of status 500: only the line that caused it fails.
    """
    acting_tenant.set(tenant)
    try:
        return await _exchange(app, _scope(url, headers), _encoded(body))
    except Exception:  # the application responds with 500 and raises the error again
        log.exception("batch_line_raised", url=url)
        error = {"type": "api_error", "message": "internal error", "param": None, "code": "internal"}
        return Reply(500, {}, {"error": error})


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Return the body in no more bytes than the line that it comes from."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


async def _exchange(app: ASGIApp, scope: dict[str, Any], body: bytes) -> Reply:
    sent: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, received, content = 500, {}, bytearray()

    async def receive() -> Message:
        if not sent:
            await asyncio.Event().wait()  # this caller never leaves: it cancels
        return sent.pop()

    async def send(message: Message) -> None:
        nonlocal status, received
        if message["type"] == "http.response.start":
            status = message["status"]
            received = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        content.extend(message.get("body", b""))

    await app(scope, receive, send)
    return Reply(status, received, json.loads(bytes(content) or b"{}"))


def _scope(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
