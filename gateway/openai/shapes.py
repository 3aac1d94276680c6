"""The two shapes of a choice: a chat's message, and a completion's text; and what both have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from baton.types import ChoiceFinished, Finished, FinishReason, TokenLogprobs
from baton.types.chat import Chat, ChatMessage, NamedTool
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from gateway.serving.fleet import Vocabulary
from gateway.serving.generations import Generation

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


def finish_reason(reason: FinishReason, *, has_calls: bool = False) -> str | None:
    """Return OpenAI's name for the end of a choice; None if the fleet ended it early, which is an error."""
    found = _FINISH_NAMES.get(reason)
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


class Shape(Protocol):
    """The differences between chats and completions."""

    id_prefix: str
    whole: str
    """The `object` of a whole response."""
    chunk: str
    """The `object` of a chunk."""
    has_prompt_in_choice: bool
    """Whether the prompt's tokens stand in each choice; else they stand beside the choices."""
    names_calls: bool
    """Whether the end of a choice says that it called tools; not where the caller has named the tool."""

    def message(self, said: ChatMessage) -> dict[str, Any]:
        """Return the fields of a whole choice."""
        ...

    def opening(self) -> dict[str, Any] | None:
        """Return the fields of a choice's first chunk, before any token."""
        ...

    def piece(self, delta: Delta | None) -> dict[str, Any]:
        """Return the fields of a chunk that adds to a choice; None: nothing, as in the last one."""
        ...

    def logprobs(
        self,
        vocabulary: Vocabulary,
        token_ids: Sequence[int],
        found: Sequence[TokenLogprobs | None],
        offset: int = 0,
    ) -> dict[str, Any]:
        """Return the log-probabilities of consecutive tokens; None: a prompt's first token has none.

        `offset` is the length of all tokens of the choice before these, by `text_end`.
        """
        ...


class ChatShape:
    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    has_prompt_in_choice = False

    def __init__(self, generation: Generation) -> None:
        chat = generation.prompt
        self.names_calls = not (isinstance(chat, Chat) and isinstance(chat.tool_choice, NamedTool))

    def message(self, said: ChatMessage) -> dict[str, Any]:
        content = said.content or (None if said.tool_calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if said.reasoning:
            message |= _reasoning(said.reasoning)
        if said.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in said.tool_calls
            ]
        return {"message": message}

    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, delta: Delta | None) -> dict[str, Any]:
        return {"delta": _delta(delta)}

    def logprobs(
        self,
        vocabulary: Vocabulary,
        token_ids: Sequence[int],
        found: Sequence[TokenLogprobs | None],
        offset: int = 0,
    ) -> dict[str, Any]:
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
        self,
        vocabulary: Vocabulary,
        token_ids: Sequence[int],
        found: Sequence[TokenLogprobs | None],
        offset: int = 0,
    ) -> dict[str, Any]:
        names = [_name(vocabulary[token_id]) for token_id in token_ids]
        tops = [
            None
            if drawn is None
            # The sampled token is always among them, so that a caller can see whether it was the likeliest.
            else {
                _name(vocabulary[other]): logprob
                for other, logprob in (*drawn.top, (token_id, drawn.logprob))
            }
            for token_id, drawn in zip(token_ids, found, strict=True)
        ]
        ends = []
        for name in names:
            ends.append(offset)
            offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [None if drawn is None else drawn.logprob for drawn in found],
            "top_logprobs": tops,
            "text_offset": ends,
        }


def text_end(logprobs: Mapping[str, Any]) -> int | None:
    """Return where the text of these log-probabilities ends; None if they have no tokens, or are a chat's."""
    begins = logprobs.get("text_offset")
    return begins[-1] + len(logprobs["tokens"][-1]) if begins else None


def _delta(delta: Delta | None) -> dict[str, Any]:
    match delta:
        case None | ToolCallEnded():
            return {}
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return _reasoning(text)
        case ToolCallBegun(index, name, id):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under both of its names: clients know one or the other."""
    return {"reasoning_content": text, "reasoning": text}


def _name(data: bytes) -> str:
    """Return a token's text; part of a character as its bytes, as OpenAI writes them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
