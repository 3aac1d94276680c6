"""What chats and completions say alike: names, finish reasons, usage, promise and delivery."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from baton.types import Accepted, ChoiceFinished, Finished, FinishReason, Promise
from gateway.errors import Problem

DONE = b"data: [DONE]\n\n"

_FINISH = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    # OpenAI has no deadlines. The text was cut off like one that reaches its length.
    FinishReason.DEADLINE: "length",
}


def sse(message: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def comment(text: str) -> bytes:
    """Return a server-sent comment, which clients ignore."""
    return f": {text}\n\n".encode()


def finish_reason(reason: FinishReason) -> str | None:
    """Return OpenAI's name for the end of a choice; None if the fleet ended it early, which is an error."""
    return _FINISH.get(reason)


def stop_reason(end: ChoiceFinished) -> str | int | None:
    """Return which of the caller's rules ended the choice, as vLLM does."""
    return end.stop_string if end.stop_string is not None else end.stop_token_id


def early_end(reason: FinishReason, error: str) -> Problem:
    """Return the problem of a generation that the fleet could not continue, or that somebody cancelled."""
    if reason is FinishReason.CANCELLED:
        return Problem(409, "api_error", "the generation was cancelled", code="cancelled")
    return Problem(500, "api_error", error or "the fleet could not continue", code="generation_failed")


def usage_json(prompt_tokens: int, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def finished_usage(*ends: Finished) -> dict[str, Any]:
    """Return the usage of one generation, or of several that one request asked for."""
    usages = [end.usage for end in ends]
    return usage_json(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        sum(usage.cached_prompt_tokens for usage in usages),
    )


def outcome_json(request_id: str, end: Finished, resumes: int) -> dict[str, Any]:
    """Return what was promised and delivered, and where the time went, in milliseconds."""
    return {
        "request_id": request_id,
        "promise": asdict(end.promise),
        "delivery": asdict(end.delivery),
        "time_split": asdict(end.split),
        "attempts": end.usage.attempts,
        "resumes": resumes,
        "path": end.path,
    }


def promise_headers(accepted: Accepted) -> dict[str, str]:
    """Return the promise as headers, which a caller has before the first token."""
    promise: Promise = accepted.promise
    return {
        "x-request-id": accepted.request_id,
        "x-baton-seed": str(accepted.seed),
        "x-baton-predicted-ttft-ms": f"{promise.predicted_ttft_ms:.1f}",
        "x-baton-predicted-tpot-ms": f"{promise.predicted_tpot_ms:.2f}",
        "x-baton-at-risk": str(promise.at_risk).lower(),
    }
