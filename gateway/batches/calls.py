"""Lines of a batch as requests to the gateway's own application, and their results as OpenAI writes them.

A line has the reply that a caller would get.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import ASGIApp, Message

from gateway.batches.records import Status
from gateway.serving.fleet import acting_tenant

_UNRUN = {
    Status.EXPIRED: ("batch_expired", "This request was not run before the completion window expired."),
    Status.CANCELLED: ("batch_cancelled", "This request was not run before the batch was cancelled."),
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Line:
    """A checked line, to run. `number` counts from 0. One with a problem cannot be run."""

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]
    problem: str = ""

    def request_id(self, batch_id: str, attempt: int) -> str:
        """Return the id under which the fleet runs the line: the same on any gateway, until it has failed."""
        return f"{batch_id}-{self.number}" + (f"-{attempt}" if attempt else "")

    def reply_result(self, batch_id: str, request_id: str, reply: Reply) -> bytes:
        """Return the result of a line that ran."""
        response = {"status_code": reply.status, "request_id": request_id, "body": reply.body}
        return self._result(batch_id, response=response)

    def unrun_result(self, batch_id: str, status: Status) -> bytes:
        """Return the result of a line that was not run before the batch ended."""
        code, message = _UNRUN[status]
        return self._result(batch_id, error={"code": code, "message": message})

    def unreadable_result(self, batch_id: str) -> bytes:
        """Return the result of a line that is not a request."""
        return self._result(batch_id, error={"code": "invalid_request", "message": self.problem})

    def _result(self, batch_id: str, response: object = None, error: object = None) -> bytes:
        name = f"batch_req_{batch_id.removeprefix('batch_')}_{self.number}"
        result = {"id": name, "custom_id": self.custom_id, "response": response, "error": error}
        return json.dumps(result).encode() + b"\n"


def parse_line(number: int, data: bytes) -> Line:
    """Return a line that has been checked."""
    try:
        found = json.loads(data)
        return Line(number, found["custom_id"], found["url"], found["body"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return Line(number, "", "", {}, f"line {number + 1} cannot be read: {error}")


def is_done(bitmap: bytes, number: int) -> bool:
    """Return whether a line has a result, in a bitmap as Redis keeps it."""
    return number // 8 < len(bitmap) and bool(bitmap[number // 8] & 0x80 >> number % 8)


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
        # The body has no more bytes than the line that it comes from.
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return await _exchange(app, _scope(url, headers), content)
    except Exception:  # the application responds with 500 and raises the error again
        log.exception("batch_line_raised", url=url)
        error = {"type": "api_error", "message": "internal error", "param": None, "code": "internal"}
        return Reply(500, {}, {"error": error})


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
