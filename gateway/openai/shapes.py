"""The two shapes of a choice: a chat's message, and a completion's text; and what both have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import orjson

from baton.types import ChoiceFinished, FinishReason, TokenLogprobs
from baton.types.chat import Chat, ChatMessage, NamedTool
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from gateway.serving.errors import invalid
from gateway.serving.fleet import Vocabulary
from gateway.serving.generations import Generation
from gateway.serving.slo import end_of

Logprobs = Sequence[TokenLogprobs | None]
"""The log-probability of each token; None: the first token of a prompt has none."""
DONE = b"data: [DONE]\n\n"

_FINISH_NAMES = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    # OpenAI has no deadlines. The text was cut off like one that reaches its length.
    FinishReason.DEADLINE: "length",
}


def sse(message: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(message) + b"\n\n"


Order = Literal["asc", "desc"]
"""The order of a list, by when its objects were made."""


def check_limit(limit: int, most: int) -> None:
    """Raise `ApiError` unless a page of a list may have so many objects."""
    if not 1 <= limit <= most:
        raise invalid("limit", f"limit is {limit}; accepted: 1 to {most}")


def list_json(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return one page of a list of objects that have ids."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def finish_reason(reason: FinishReason) -> str | None:
    """Return OpenAI's name for the end of a choice; None if the fleet ended it early, which is an error."""
    return _FINISH_NAMES.get(reason)


def ending_json(end: ChoiceFinished, *, has_calls: bool, has_cut_call: bool) -> dict[str, Any]:
    """Return how a choice ended, and which of the caller's rules ended it, as vLLM does."""
    reason = finish_reason(end_of(end.reason, has_cut_call=has_cut_call))
    return {
        "finish_reason": "tool_calls" if has_calls and not has_cut_call and reason == "stop" else reason,
        "stop_reason": end.stop_string if end.stop_string is not None else end.stop_token_id,
    }


def usage_json(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


class ChatShape:
    """The choices of a chat."""

    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    """The `object` of a whole response; `chunk` is that of a part."""
    chunk = "chat.completion.chunk"
    has_prompt_in_choice = False
    """Whether the prompt's tokens stand in each choice; else they stand beside the choices."""

    def __init__(self, generation: Generation) -> None:
        chat = generation.prompt
        self.names_calls = not (isinstance(chat, Chat) and isinstance(chat.tool_choice, NamedTool))
        """Whether the end of a choice says that it called tools; not where the caller has named the tool."""

    def message(self, said: ChatMessage) -> dict[str, Any]:
        """Return the fields of a whole choice."""
        content = said.content or (None if said.tool_calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if said.reasoning:
            message |= _reasoning(said.reasoning)
        if said.tool_calls:
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in said.tool_calls]
        return {"message": message}

    def opening(self) -> dict[str, Any] | None:
        """Return the fields of a choice's first chunk, before any token."""
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, delta: Delta | None) -> dict[str, Any]:
        """Return the fields of a chunk that adds to a choice; None: nothing, as in the last one."""
        match delta:
            case ContentDelta(text):
                fields: dict[str, Any] = {"content": text}
            case ReasoningDelta(text):
                fields = _reasoning(text)
            case ToolCallBegun(index, name, id):
                fields = {"tool_calls": [{"index": index} | _call(id, name)]}
            case ToolCallArguments(index, text):
                fields = {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case None | ToolCallEnded():
                fields = {}
        return {"delta": fields}

    def logprobs(
        self, vocabulary: Vocabulary, token_ids: Sequence[int], found: Logprobs, offset: int = 0
    ) -> dict[str, Any]:
        """Return the log-probabilities of consecutive tokens.

        `offset` is the length of the texts of all tokens of the choice before these.
        """

        def token(token_id: int, logprob: float) -> dict[str, Any]:
            data = vocabulary[token_id]
            return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

        content = [
            token(token_id, drawn.logprob) | {"top_logprobs": [token(*other) for other in drawn.top]}
            for token_id, drawn in zip(token_ids, found, strict=True)
            if drawn is not None
        ]
        return {"content": content, "refusal": None}


class TextShape:
    """The choices of a completion, which are texts."""

    id_prefix = "cmpl-"
    whole = "text_completion"
    chunk = "text_completion"
    has_prompt_in_choice = True
    names_calls = False

    def message(self, said: ChatMessage) -> dict[str, Any]:
        return {"text": said.content}

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, delta: Delta | None) -> dict[str, Any]:
        return {"text": delta.text if isinstance(delta, ContentDelta) else ""}

    def logprobs(
        self, vocabulary: Vocabulary, token_ids: Sequence[int], found: Logprobs, offset: int = 0
    ) -> dict[str, Any]:
        def likeliest(token_id: int, drawn: TokenLogprobs) -> dict[str, float]:
            # The sampled token is always among them, so that a caller can see whether it was the likeliest.
            return {
                _name(vocabulary[other]): logprob
                for other, logprob in (*drawn.top, (token_id, drawn.logprob))
            }

        names = [_name(vocabulary[token_id]) for token_id in token_ids]
        pairs = zip(token_ids, found, strict=True)
        begins = accumulate(map(len, names[:-1]), initial=offset) if names else ()
        return {
            "tokens": names,
            "token_logprobs": [None if drawn is None else drawn.logprob for drawn in found],
            "top_logprobs": [
                None if drawn is None else likeliest(token_id, drawn) for token_id, drawn in pairs
            ],
            "text_offset": list(begins),
        }


Shape = ChatShape | TextShape


def _call(id: str, name: str, arguments: str = "") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under both of its names: clients know one or the other."""
    return {"reasoning_content": text, "reasoning": text}


def _name(data: bytes) -> str:
    """Return a token's text; part of a character as its bytes, as OpenAI writes them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
