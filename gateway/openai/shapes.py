"""The two shapes of a choice: a chat's message, and a completion's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from baton.types import TokenLogprobs
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
