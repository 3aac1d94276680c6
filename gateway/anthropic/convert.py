"""Conversion of Anthropic's requests to the SDK's types, and of the contract's field names back."""

from __future__ import annotations

from collections.abc import Mapping

from baton.chat import Chat, ChatMessage
from baton.types import Sampling, Stop
from gateway.anthropic.schema import MessagesBody, PromptFields
from gateway.bodies import text_of
from gateway.errors import invalid, renamed
from gateway.generations import ID_HEADER, Generation, seed_of
from gateway.slo import slo_of

_RENAMED = {
    "stop.stop_strings": "stop_sequences",
    "stop.max_tokens": "max_tokens",
    "request_id": "Idempotency-Key",
}


def param_of(field: str) -> str:
    """Return the name in the HTTP body of a field of the contract."""
    return renamed(field, _RENAMED)


def generation_of(body: MessagesBody, headers: Mapping[str, str]) -> Generation:
    """Return the generation that a body asks for; raises `ApiError`."""
    return Generation(
        chat_of(body),
        Sampling(
            temperature=body.temperature, top_k=body.top_k, top_p=body.top_p, seed=seed_of(None, headers)
        ),
        Stop(max_tokens=body.max_tokens, strings=tuple(body.stop_sequences or ())),
        slo_of(body.slo, headers),
        headers.get(ID_HEADER, ""),
    )


def chat_of(body: PromptFields) -> Chat:
    """Return the chat. If the assistant speaks last, its message is continued. Raises `ApiError`."""
    for name, value in (("tools", body.tools), ("tool_choice", body.tool_choice)):
        if value:
            raise invalid(name, f"{name} is set; accepted: unset, as this fleet does not serve it")
    if body.thinking is not None and body.thinking.get("type") != "disabled":
        raise invalid("thinking", "thinking is set; accepted: unset, or of type 'disabled'")
    system = [] if body.system is None else [ChatMessage("system", text_of(body.system, "system"))]
    spoken = [
        ChatMessage(message.role, text_of(message.content, f"messages[{index}].content"))
        for index, message in enumerate(body.messages)
    ]
    return Chat([*system, *spoken], continue_final_message=body.messages[-1].role == "assistant")
