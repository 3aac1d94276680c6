"""Conversion of requests to the SDK's types, the fields that a response repeats, and names of fields back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baton.types import JsonObject, JsonSchema, OutputFormat
from baton.types.chat import Chat, Tool
from baton.wire.fields import shown
from gateway.openai.convert import leave_out_obfuscation, sampling_of, stop_of, tool_choice_of, tool_of
from gateway.responses.items import Item, messages_of
from gateway.responses.schema import FunctionTool, Reasoning, ResponsesBody, TextConfig
from gateway.serving.bodies import leave_out, leave_out_unless, read_tools
from gateway.serving.errors import invalid, renamed
from gateway.serving.generations import ID_HEADER, Generation, user_of
from gateway.serving.slo import program_of, slo_of

_RENAMED = {
    "adapter": "model",
    "stop.strings": "stop",
    "stop.stop_strings": "stop",
    "stop.include_stop": "include_stop_str_in_output",
    "stop.max_tokens": "max_output_tokens",
    "chat.template_arguments": "chat_template_kwargs",
    "output_format.json_schema": "text.format.schema",
    "output_format": "text.format",
    "request_id": "Idempotency-Key",
}
_INCLUDED = ("reasoning.encrypted_content",)
"""Extras of `include` that are served. Reasoning always comes with its text, so nothing is encrypted."""
_LOGPROBS = "message.output_text.logprobs"
MAX_TOOLS = 128
"""The limit of a router too."""
_OWN_NAMES = {"user", "safety_identifier", "prompt_cache_key"}
_REPEATED = {"instructions", "previous_response_id", "max_output_tokens", "metadata"} | _OWN_NAMES
"""Fields that a response has as its request gave them."""
MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512


def param_of(field: str) -> str:
    """Return the name in the HTTP body of a field of the contract."""
    # A message is made from several items, or from `instructions`, so its number says nothing.
    return "input" if field == "chat" or field.startswith("chat.messages") else renamed(field, _RENAMED)


def check(body: ResponsesBody) -> None:
    """Raise `ApiError` for a field that is not served, by its name."""
    text, reasoning = body.text or TextConfig(), body.reasoning or Reasoning()
    leave_out_unless("truncation", body.truncation, "disabled")
    leave_out_unless("text.verbosity", text.verbosity, "medium")
    if body.stream_options is not None:
        leave_out_obfuscation(body.stream_options.include_obfuscation)
    for field in ("summary", "generate_summary"):
        why = ", as reasoning comes as it was written"
        leave_out_unless(f"reasoning.{field}", getattr(reasoning, field), "auto", why)
    check_included(body.include or ())
    metadata = body.metadata or {}
    longest_key, longest_value = (max(map(len, texts), default=0) for texts in (metadata, metadata.values()))
    if len(metadata) > MAX_METADATA or longest_key > MAX_KEY or longest_value > MAX_VALUE:
        accepted = f"{MAX_METADATA}, with keys of up to {MAX_KEY} and values of up to {MAX_VALUE} characters"
        raise invalid("metadata", f"metadata has {len(metadata)} entries; accepted: up to {accepted}")


def check_included(names: Sequence[str]) -> None:
    """Leave out extras that no response has. Raises `ApiError` for log-probabilities."""
    for index, name in enumerate(names):
        where = f"include[{index}]"
        message = f"{where} is {shown(name)}; accepted: {', '.join(_INCLUDED)}"
        if name == _LOGPROBS:
            raise invalid(where, message)
        if name not in _INCLUDED:
            leave_out(where, message)


def generation_of(
    body: ResponsesBody,
    conversation: Sequence[Item],
    num_earlier: int,
    headers: Mapping[str, str],
    request_id: str,
    context_tokens: int,
) -> Generation:
    """Return the generation that continues a conversation. Raises `ApiError`."""
    effort = None if body.reasoning is None else body.reasoning.effort
    arguments = {} if effort is None else {"reasoning_effort": effort}
    tools = _tools(body)
    chat = Chat(
        messages_of(conversation, num_earlier, body.instructions),
        arguments | (body.chat_template_kwargs or {}),
        tools=tools,
        tool_choice=tool_choice_of(body.tool_choice, has_tools=bool(tools), nests=False),
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
    )
    limit = body.max_output_tokens
    return Generation(
        chat,
        sampling_of(body, headers),
        stop_of(body, context_tokens if limit is None else limit),
        slo_of(body.slo, headers),
        request_id,
        body.truncate_prompt_tokens,
        _output_format(body),
        cancel_when_closed=not headers.get(ID_HEADER),
        user=user_of(body.user or body.safety_identifier),
        program=program_of(body.program, headers),
    )


def repeated(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of a request that its response repeats."""
    given = body.model_dump(
        mode="json",
        by_alias=True,
        include=_REPEATED,
    )
    form = None if body.text is None else body.text.format
    reasoning = body.reasoning or Reasoning()
    return given | {
        "background": False,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "service_tier": "default",
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)
        },
        "tool_choice": _known(body.tool_choice, ("type", "name")) or "auto",
        "tools": [_known(tool, FunctionTool.model_fields) for tool in body.tools or () if _is_function(tool)],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


def _tools(body: ResponsesBody) -> list[Tool]:
    """Return the functions among the tools. Raises `ApiError`."""
    tools = [tool_of(tool) for tool in read_tools(FunctionTool, body.tools, "function")]
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"tools has {len(tools)} functions; accepted: up to {MAX_TOOLS}")
    return tools


def _known(given: Any, names: Iterable[str]) -> Any:
    """Return what is served of an object; a text as it is."""
    return {name: given[name] for name in names if name in given} if isinstance(given, dict) else given


def _is_function(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool is a function, or claims to be nothing else."""
    kind = tool.get("type")
    return kind == "function" or not isinstance(kind, str)


def _output_format(body: ResponsesBody) -> OutputFormat | None:
    form = None if body.text is None else body.text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return JsonObject()
    if form.schema_ is None:
        name = "text.format.schema"
        raise invalid(name, f"{name} is missing; accepted: a JSON schema")
    return JsonSchema(form.schema_)
