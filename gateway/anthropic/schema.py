"""The bodies of Anthropic's requests, with `slo`, which is Baton's own. Unknown fields are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.slo import SloFields, Strict

Blocks = str | list[dict[str, Any]]
"""A text, or blocks of content, of which `convert` takes texts and refuses the others by name."""


class MessageParam(Strict):
    role: Literal["user", "assistant"]
    content: Blocks


class PromptFields(Strict):
    """The fields that a message and a count of tokens have in common."""

    model: str = ""
    messages: list[MessageParam] = Field(min_length=1)
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    """Taken and not needed: the fleet caches every prefix."""


class MessagesBody(PromptFields):
    """`POST /v1/messages`."""

    max_tokens: int
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    slo: SloFields | None = None


class CountBody(PromptFields):
    """`POST /v1/messages/count_tokens`."""
