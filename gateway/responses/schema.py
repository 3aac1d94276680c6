"""The bodies of `/v1/responses`, with Baton's own `slo` and `program`. Unknown fields are left out."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.openai.schema import Function, PastText, SamplingFields
from gateway.serving.slo import NullIsUnset, Strict

Parts = str | list[dict[str, Any]]
"""A text, or parts, of which `items` takes texts and refuses the others by name."""


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Strict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: PastText
    id: str | None = None
    status: str | None = None


class CallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: str | None = None
    status: str | None = None


class ReasoningItem(Strict):
    type: Literal["reasoning"]
    summary: Annotated[list[dict[str, Any]], NullIsUnset] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


class ReferenceItem(Strict):
    type: Literal["item_reference"]
    id: str


class FunctionTool(Function):
    type: Literal["function"]


class TextFormat(Strict):
    """A format of the text. A schema's `strict` is always kept, whether it is set or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Strict):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class StreamOptions(Strict):
    include_obfuscation: bool | None = None


class ResponsesBody(SamplingFields):
    """`POST /v1/responses`."""

    unserved: ClassVar[frozenset[str]] = (
        SamplingFields.unserved
        | {"background", "conversation", "prompt"}
        | {"top_logprobs", "moderation", "image"}
    )

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    service_tier: str | None = None
    # Names of the caller's own, which need nothing from the fleet.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # vLLM's addition
    chat_template_kwargs: dict[str, Any] | None = None
