"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from gateway.errors import Problem

_TYPES = {404: "invalid_request_error"}
"""OpenAI has no type for what does not exist; its clients look at the status."""


def error_json(problem: Problem) -> dict[str, Any]:
    """Return OpenAI's error object, with the SLO that could have been promised."""
    error: dict[str, Any] = {
        "message": problem.message,
        "type": _TYPES.get(problem.status, problem.type),
        "param": problem.param or None,
        "code": problem.code or None,
    }
    if problem.attainable:
        error["attainable"] = problem.attainable
    if problem.retry_after_s is not None:
        error["retry_after_ms"] = round(problem.retry_after_s * 1000)
    return {"error": error}
