"""Whole messages, and the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from baton.errors import BatonError
from baton.parsing import deltas_of
from baton.types import ChoiceFinished, Completion, Event, Finished, FinishReason, Queued, Tokens, Usage
from baton.types.chat import ChatMessage
from baton.types.deltas import (
    ContentDelta,
    CutCalls,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    said_by_assistant,
)
from gateway.anthropic.convert import param_of
from gateway.serving.direct import Frames, Line
from gateway.serving.errors import ApiError, anthropic_error
from gateway.serving.generations import Running
from gateway.serving.request_log import problem_to_tell
from gateway.serving.slo import arguments_of, early_end, end_of, outcome_json

_BLOCKS = {ContentDelta: "text", ReasoningDelta: "thinking", ToolCallArguments: "tool_use"}
"""The block that a delta goes on with."""
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def message_json(completion: Completion, model: str) -> dict[str, Any]:
    """Return a whole message. Raises `ApiError` if it ended early."""
    choice = completion.choices[0]
    deltas = deltas_of(choice, completion)
    said, has_cut_call = said_by_assistant(deltas), bool(CutCalls(deltas))
    end = ChoiceFinished(0, choice.finish_reason, len(choice.token_ids), choice.stop_string)
    return _message(completion.request_id, model) | {
        "content": _content(deltas, said),
        **_stop(end, completion.finished, has_calls=bool(said.tool_calls), has_cut_call=has_cut_call),
        "usage": _usage(completion.finished.usage),
        "baton": outcome_json(completion.request_id, completion.finished, completion.resumes),
    }


def _content(deltas: Sequence[Delta], said: ChatMessage) -> list[dict[str, Any]]:
    """Return the blocks of a message in the order in which the model wrote them, as a stream has them."""
    blocks: list[dict[str, Any]] = []

    def add(kind: str, field: str, text: str, **more: str) -> None:
        if not blocks or blocks[-1]["type"] != kind:
            blocks.append({"type": kind, field: "", **more})
        blocks[-1][field] += text

    for delta in deltas:
        match delta:
            case ContentDelta(text):
                add("text", "text", text)
            case ReasoningDelta(text):
                add("thinking", "thinking", text, signature="")
            case ToolCallBegun(index):
                call = said.tool_calls[index]
                if (given := arguments_of(call.arguments)) is not None:
                    blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
            case ToolCallArguments() | ToolCallEnded():
                pass  # the call has them
    return blocks or [{"type": "text", "text": ""}]


async def message_events(running: Running, model: str, line: Line) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, and an error as its last one."""
    events = _Events(running, model)
    running.write_directly(line, events.said)
    try:
        async with aclosing(running.events) as received:
            yield events.opening()
            async for event in received:
                data = events.of(event)
                if data:
                    yield data
    except (BatonError, ApiError) as error:
        yield _sse(anthropic_error(problem_to_tell(error, param_of)))


@dataclass(slots=True)
class _Events:
    """Turns the events of one generation into Anthropic's."""

    running: Running
    model: str
    end: ChoiceFinished | None = None
    index: int = -1
    """The block that is open, or was last; `kind` is its type."""
    kind: str = ""
    has_calls: bool = False
    cut_calls: CutCalls = field(default_factory=CutCalls)
    frames: Frames = field(init=False)
    """For texts of the block that is open."""

    def __post_init__(self) -> None:
        self.frames = Frames(self._add)

    def said(self, deltas: Sequence[TextDelta], _: int) -> bytes | None:
        """Return the events of tokens that go on with the open block; None for others."""
        if any(self.kind != _BLOCKS[type(delta)] for delta in deltas):
            return None
        return b"".join(map(self.frames.of, deltas))

    def opening(self) -> bytes:
        accepted = self.running.accepted
        message = _message(accepted.request_id, self.model) | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": accepted.prompt_tokens, "output_tokens": 0},
        }
        return _sse({"type": "message_start", "message": message})

    def of(self, event: Event) -> bytes:
        """Return what one event says; nothing for most. Raises `ApiError` if the message ended early."""
        match event:
            case Queued():
                return _PING
            case Tokens():
                return b"".join(map(self._add, deltas_of(event, self.running.accepted)))
            case ChoiceFinished():
                self.end = event
                return b"".join(map(self._add, event.deltas))
            case Finished():
                return self._finish(event)
        return b""

    def _add(self, delta: Delta) -> bytes:
        self.cut_calls.add(delta)
        match delta:
            case ContentDelta(text):
                begin = self._begin("text", text="") if self.kind != "text" else b""
                told = {"type": "text_delta", "text": text}
            case ReasoningDelta(text):
                begin = self._begin("thinking", thinking="", signature="") if self.kind != "thinking" else b""
                told = {"type": "thinking_delta", "thinking": text}
            case ToolCallBegun(_, name, id):
                self.has_calls = True
                return self._begin("tool_use", id=id, name=name, input={})
            case ToolCallArguments(_, text):
                begin, told = b"", {"type": "input_json_delta", "partial_json": text}
            case ToolCallEnded():
                return b""
        return begin + _sse({"type": "content_block_delta", "index": self.index, "delta": told})

    def _begin(self, kind: str, **fields: Any) -> bytes:
        """Begin a block, after the end of the one before."""
        closing = self._close()
        self.index += 1
        self.kind = kind
        self.frames = Frames(self._add)
        block = {"type": kind, **fields}
        return closing + _sse({"type": "content_block_start", "index": self.index, "content_block": block})

    def _close(self) -> bytes:
        return _sse({"type": "content_block_stop", "index": self.index}) if self.kind else b""

    def _finish(self, finished: Finished) -> bytes:
        assert self.end is not None
        cut = bool(self.cut_calls)
        stop = _stop(self.end, finished, has_calls=self.has_calls, has_cut_call=cut)
        outcome = outcome_json(self.running.accepted.request_id, finished, self.running.resumes)
        delta = {"type": "message_delta", "delta": stop, "usage": _usage(finished.usage), "baton": outcome}
        empty = b"" if self.kind else self._begin("text", text="")
        return empty + self._close() + _sse(delta) + _sse({"type": "message_stop"})


def _message(request_id: str, model: str) -> dict[str, Any]:
    return {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}


def _stop(end: ChoiceFinished, finished: Finished, *, has_calls: bool, has_cut_call: bool) -> dict[str, Any]:
    match end_of(end.reason, has_cut_call=has_cut_call):
        case FinishReason.EOS:
            reason = "tool_use" if has_calls and not has_cut_call else "end_turn"
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
