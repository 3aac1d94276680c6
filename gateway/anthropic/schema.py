"""The bodies of Anthropic's requests, with Baton's own `slo` and `program`. Unknown fields are left out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.serving.slo import MAX_MESSAGES, NullIsUnset, ProgramFields, SloFields, Strict

Content = str | list[dict[str, Any]]
"""A text, or blocks, which `messages` takes apart by their types."""


class Block(Strict):
    """A block of content. `cache_control` is taken and not needed: the fleet caches every prefix."""

    type: str
    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str


class ThinkingBlock(Block):
    """Reasoning. Its signature is not checked, as nobody but the model depends on it."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, NullIsUnset] = ""


class ToolUseBlock(Block):
    """A call. Its input is an object, or the beginning of one as a text, if the call was cut off."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] | str | None
    caller: dict[str, Any] | None = None


class ToolResultBlock(Block):
    """The result of a call. Templates have no place for `is_error`: the text has to say it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[Content, NullIsUnset] = ""
    is_error: bool | None = None


class MessageParam(Strict):
    role: Literal["user", "assistant", "system"]
    content: Content


class ToolParam(Strict):
    """A tool that the caller runs. Its input is streamed as it comes in any case."""

    type: str | None = None
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None


class ToolChoiceParam(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Annotated[bool, NullIsUnset] = False


class Thinking(Strict):
    """Whether the model thinks first, if its template lets callers choose.

    Thoughts count for `max_tokens`, whatever `budget_tokens` says.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class JsonFormat(Strict):
    """A schema that the text validates against."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """The format of the text, and the effort, which is a variable of the chat template."""

    effort: str | None = None
    format: JsonFormat | None = None


class PromptFields(Strict):
    """The fields that a message and a count of tokens have in common."""

    model: Annotated[str, NullIsUnset] = ""
    messages: list[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """The older name of `output_config.format`."""
    cache_control: dict[str, Any] | None = None


class MessagesBody(PromptFields):
    """`POST /v1/messages`."""

    max_tokens: int
    stream: Annotated[bool, NullIsUnset] = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    slo: SloFields | None = None
    program: ProgramFields | None = None


class CountBody(PromptFields):
    """`POST /v1/messages/count_tokens`."""
