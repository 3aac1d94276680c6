"""The parts that chats and completions have in common: events, finish reasons and usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from baton.types import ChoiceFinished, Finished, FinishReason

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
    return b"data: " + orjson.dumps(message) + b"\n\n"


def finish_reason(reason: FinishReason, *, has_calls: bool = False) -> str | None:
    """Return OpenAI's name for the end of a choice; None if the fleet ended it early, which is an error."""
    found = _FINISH.get(reason)
    return "tool_calls" if has_calls and found == "stop" else found


def stop_reason(end: ChoiceFinished) -> str | int | None:
    """Return which of the caller's rules ended the choice, as vLLM does."""
    return end.stop_string if end.stop_string is not None else end.stop_token_id


def usage_json(prompt_tokens: int, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def finished_usage(ends: Sequence[Finished], *, has_output: bool = True) -> dict[str, Any]:
    """Return the usage of one generation, or of several that one request asked for.

    Without `has_output` the request asked for no token, and those that were generated all the same are not
    counted.
    """
    usages = [end.usage for end in ends]
    return usage_json(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages) if has_output else 0,
        sum(usage.cached_prompt_tokens for usage in usages),
    )
