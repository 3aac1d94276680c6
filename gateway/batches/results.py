"""The result of a line, as OpenAI writes it."""

from __future__ import annotations

import json
from typing import Any

from gateway.batches.calls import Reply
from gateway.batches.lines import Line
from gateway.batches.records import Status

_UNRUN = {
    Status.EXPIRED: ("batch_expired", "This request was not run before the completion window expired."),
    Status.CANCELLED: ("batch_cancelled", "This request was not run before the batch was cancelled."),
}


def request_id_of(batch_id: str, number: int, attempt: int = 0) -> str:
    """Return the id under which the fleet runs a line: the same on any gateway, until the line has failed."""
    return f"{batch_id}-{number}" + (f"-{attempt}" if attempt else "")


def reply_line(batch_id: str, line: Line, request_id: str, reply: Reply) -> bytes:
    """Return the result of a line that ran."""
    response = {"status_code": reply.status, "request_id": request_id, "body": reply.body}
    return _result(batch_id, line, response=response, error=None)


def unrun_line(batch_id: str, line: Line, status: Status) -> bytes:
    """Return the result of a line that was not run before the batch ended."""
    code, message = _UNRUN[status]
    return _result(batch_id, line, response=None, error={"code": code, "message": message})


def unreadable_line(batch_id: str, line: Line) -> bytes:
    """Return the result of a line that is not a request."""
    return _result(batch_id, line, response=None, error={"code": "invalid_request", "message": line.problem})


def _result(batch_id: str, line: Line, **fields: Any) -> bytes:
    name = f"batch_req_{batch_id.removeprefix('batch_')}_{line.number}"
    return json.dumps({"id": name, "custom_id": line.custom_id} | fields).encode() + b"\n"
