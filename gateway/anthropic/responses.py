"""Whole messages, and the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from baton.errors import BatonError
from baton.types import ChoiceFinished, Completion, Event, Finished, FinishReason, Queued, Tokens, Usage
from gateway.anthropic.convert import param_of
from gateway.errors import ApiError, Problem, problem_of
from gateway.generations import Running
from gateway.outcome import early_end, outcome_json

_TYPES = {413: "request_too_large", 408: "timeout_error", 409: "invalid_request_error"}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def error_json(problem: Problem) -> dict[str, Any]:
    """Return Anthropic's error object, with the field and the SLO that could have been promised."""
    error: dict[str, Any] = {
        "type": _TYPES.get(problem.status, problem.type),
        "message": problem.message,
        "param": problem.param or None,
        "code": problem.code or None,
    }
    if problem.attainable:
        error["attainable"] = problem.attainable
    return {"type": "error", "error": error}


def message_json(completion: Completion, model: str) -> dict[str, Any]:
    """Return a whole message. Raises `ApiError` if it ended early."""
    choice = completion.choices[0]
    end = ChoiceFinished(0, choice.finish_reason, len(choice.token_ids), choice.stop_string)
    return _message(completion.request_id, model) | {
        "content": [{"type": "text", "text": choice.text}],
        **_stop(end, completion.finished),
        "usage": _usage(completion.finished.usage),
        "baton": outcome_json(completion.request_id, completion.finished, completion.resumes),
    }


async def message_events(running: Running, model: str) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, and an error as its last one."""
    events = _Events(running, model)
    try:
        async with aclosing(running.events) as received:
            yield events.opening()
            async for event in received:
                data = events.of(event)
                if data:
                    yield data
    except (BatonError, ApiError) as error:
        yield _sse(error_json(problem_of(error, param_of)))


@dataclass(slots=True)
class _Events:
    """Turns the events of one generation into Anthropic's."""

    running: Running
    model: str
    end: ChoiceFinished | None = None

    def opening(self) -> bytes:
        accepted = self.running.accepted
        message = _message(accepted.request_id, self.model) | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": accepted.prompt_tokens, "output_tokens": 0},
        }
        block = {"type": "text", "text": ""}
        return _sse({"type": "message_start", "message": message}) + _sse(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def of(self, event: Event) -> bytes:
        """Return what one event says; nothing for most. Raises `ApiError` if the message ended early."""
        match event:
            case Queued():
                return _PING
            case Tokens() if event.text:
                delta = {"type": "text_delta", "text": event.text}
                return _sse({"type": "content_block_delta", "index": 0, "delta": delta})
            case ChoiceFinished():
                self.end = event
            case Finished():
                return self._finish(event)
        return b""

    def _finish(self, finished: Finished) -> bytes:
        assert self.end is not None
        outcome = outcome_json(self.running.accepted.request_id, finished, self.running.resumes)
        delta = {
            "type": "message_delta",
            "delta": _stop(self.end, finished),
            "usage": _usage(finished.usage),
            "baton": outcome,
        }
        closing = _sse({"type": "content_block_stop", "index": 0})
        return closing + _sse(delta) + _sse({"type": "message_stop"})


def _message(request_id: str, model: str) -> dict[str, Any]:
    return {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}


def _stop(end: ChoiceFinished, finished: Finished) -> dict[str, Any]:
    match end.reason:
        case FinishReason.EOS:
            reason = "end_turn"
        case FinishReason.STOP:
            reason = "stop_sequence"
        case FinishReason.LENGTH | FinishReason.DEADLINE:
            reason = "max_tokens"
        case _:
            raise ApiError(early_end(end.reason, finished.error))
    return {"stop_reason": reason, "stop_sequence": end.stop_string}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the usage; Anthropic's input tokens are those that no cache held."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
    }


def _sse(message: dict[str, Any]) -> bytes:
    return f"event: {message['type']}\ndata: ".encode() + orjson.dumps(message) + b"\n\n"
