"""The two shapes of a choice: a chat's message, and a completion's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from baton.types import TokenLogprobs
from gateway.fleet import Vocabulary


class Shape(Protocol):
    """The differences between chats and completions."""

    id_prefix: str
    whole: str
    """The `object` of a whole response."""
    chunk: str
    """The `object` of a chunk."""

    def message(self, text: str) -> dict[str, Any]:
        """Return the fields of a whole choice."""
        ...

    def opening(self) -> dict[str, Any] | None:
        """Return the fields of a choice's first chunk, before any token."""
        ...

    def piece(self, text: str) -> dict[str, Any]:
        """Return the fields of a chunk that adds text; empty in the last one."""
        ...

    def logprobs(
        self, vocabulary: Vocabulary, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]
    ) -> dict[str, Any]:
        """Return the log-probabilities of consecutive tokens; None: a prompt's first token has none."""
        ...


class ChatShape:
    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def logprobs(
        self, vocabulary: Vocabulary, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]
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

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(
        self, vocabulary: Vocabulary, token_ids: Sequence[int], found: Sequence[TokenLogprobs | None]
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
        ends, offset = [], 0
        for name in names:
            ends.append(offset)
            offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [None if drawn is None else drawn.logprob for drawn in found],
            "top_logprobs": tops,
            "text_offset": ends,
        }


def _name(data: bytes) -> str:
    """Return a token's text; part of a character as its bytes, as OpenAI writes them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
