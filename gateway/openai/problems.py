"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from gateway.errors import Problem


def error_json(problem: Problem) -> dict[str, Any]:
    """Return OpenAI's error object, with the SLO that could have been promised."""
    error: dict[str, Any] = {
        "message": problem.message,
        "type": problem.type,
        "param": problem.param or None,
        "code": problem.code or None,
    }
    if problem.attainable:
        error["attainable"] = problem.attainable
    if problem.retry_after_s is not None:
        error["retry_after_ms"] = round(problem.retry_after_s * 1000)
    return {"error": error}
