"""Conversion of Anthropic's requests to the SDK's types, and of the contract's field names back."""

from __future__ import annotations

from collections.abc import Mapping

from baton import Chat
from baton.types import JsonSchema, Sampling, Stop
from gateway.anthropic.schema import MessagesBody
from gateway.serving.errors import invalid, renamed
from gateway.serving.generations import ID_HEADER, Generation, seed_of, user_of
from gateway.serving.slo import slo_of

_RENAMED = {
    "adapter": "model",
    "stop.stop_strings": "stop_sequences",
    "stop.max_tokens": "max_tokens",
    "chat.parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat.tools[].parameters": "tools[].input_schema",
    "output_format.json_schema": "output_config.format.schema",
    "output_format": "output_config.format",
    "request_id": "Idempotency-Key",
}


def param_of(field: str) -> str:
    """Return the name in the HTTP body of a field of the contract."""
    # A message's results of tools are messages of their own, so its number says nothing.
    return "messages" if field == "chat" or field.startswith("chat.messages") else renamed(field, _RENAMED)


def generation_of(body: MessagesBody, chat: Chat, headers: Mapping[str, str]) -> Generation:
    """Return the generation that a body asks for, whose chat is `chat`; raises `ApiError`."""
    form = None if body.output_config is None else body.output_config.format
    if body.output_format is not None:
        if form is not None:
            accepted = "unset, beside output_config.format"
            raise invalid("output_format", f"output_format is set; accepted: {accepted}")
        form = body.output_format
    return Generation(
        chat,
        Sampling(
            temperature=body.temperature, top_k=body.top_k, top_p=body.top_p, seed=seed_of(None, headers)
        ),
        Stop(max_tokens=body.max_tokens, strings=tuple(body.stop_sequences or ())),
        slo_of(body.slo, headers),
        headers.get(ID_HEADER, ""),
        output_format=None if form is None else JsonSchema(form.schema_),
        cancel_when_closed=not headers.get(ID_HEADER),
        user=user_of((body.metadata or {}).get("user_id")),
    )
