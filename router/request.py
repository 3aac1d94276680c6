"""A request as received: its fields, the messages and tools of a chat, and what is asked of the model."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from model_output.grammar.exact_numbers import schema_of
from scheduling.request import FinishReason, Matched, Program, SamplingParams, Slo, StopRules
from scheduling.value import value


class ChatRefused(Exception):
    """A field of the chat is wrong: its path, its value, and what is accepted."""

    def __init__(self, field: str, value: str, accepted: str) -> None:
        super().__init__(field, value, accepted)
        self.field = field
        self.value = value
        self.accepted = accepted


class ToolMode(enum.IntEnum):
    """`ToolMode` of the contract, with the same values."""

    AUTO = 1
    NONE = 2
    REQUIRED = 3


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options for rendering a conversation, besides its messages."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The caller's variables for the template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`ToolCall` of the contract; `arguments` is JSON, unless the call was cut off."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`ChatMessage` of the contract, with its parts joined."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """`Tool` of the contract; `parameters` is JSON."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """`ChatInput` of the contract."""

    messages: tuple[Message, ...]
    options: ChatOptions = field(default_factory=ChatOptions)
    tools: tuple[Tool, ...] = ()
    tool_mode: int = 0
    """A `ToolMode`; 0 if none was stated."""
    named_tool: str | None = None
    parallel_tool_calls: bool | None = None

    @property
    def shown_tools(self) -> tuple[Tool, ...]:
        """The tools that the model sees."""
        return () if self.tool_mode == ToolMode.NONE else self.tools

    @property
    def forces_a_call(self) -> bool:
        return self.named_tool is not None or self.tool_mode == ToolMode.REQUIRED

    @property
    def guides_calls(self) -> bool:
        """The model may call tools or not, and has to keep to rules if it does."""
        has_rules = self.parallel_tool_calls is False or any(tool.strict for tool in self.tools)
        return has_rules and bool(self.shown_tools) and not self.forces_a_call

    @property
    def has_text_arguments(self) -> bool:
        """Some call that was made has arguments that are no object."""
        calls = (call for message in self.messages for call in message.tool_calls)
        return any(isinstance(past_arguments(call.arguments), str) for call in calls)

    @property
    def num_bytes(self) -> int:
        """All text in the conversation, in UTF-8."""
        return sum(len(text.encode()) for text in self.texts())

    def texts(self) -> Iterator[str]:
        """Yield every text of the conversation; some are JSON."""
        for message in self.messages:
            yield from (message.role, message.content, message.tool_call_id, message.name, message.reasoning)
            for call in message.tool_calls:
                yield from (call.id, call.name, call.arguments)
        for tool in self.tools:
            yield from (tool.name, tool.description, tool.parameters)

    def template_messages(
        self, reasoning_keys: tuple[str, ...], *, all_objects: bool = False
    ) -> list[dict[str, Any]]:
        """Return the messages as templates know them.

        Reasoning is under each of `reasoning_keys`. A tool's result has the name of its call. Arguments that
        are no object are the text that they are, or with `all_objects` the one argument of an object.
        """
        callers: dict[str, str] = {}
        rendered = []
        for message in self.messages:
            turn: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.reasoning:
                turn |= dict.fromkeys(reasoning_keys, message.reasoning)
            if message.tool_calls:
                turn["tool_calls"] = [_template_call(call, all_objects) for call in message.tool_calls]
                callers |= {call.id: call.name for call in message.tool_calls if call.id}
            if message.tool_call_id:
                turn["tool_call_id"] = message.tool_call_id
            if name := message.name or callers.get(message.tool_call_id, ""):
                turn["name"] = name
            rendered.append(turn)
        return rendered

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schema of each tool's arguments. Raises `ChatRefused` for those that are none."""
        return [_schema(tool, f"chat.tools[{place}].parameters") for place, tool in enumerate(self.tools)]


def template_tools(tools: tuple[Tool, ...], schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools as templates know them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": schema or {"type": "object", "properties": {}},
            },
        }
        for tool, schema in zip(tools, schemas, strict=True)
    ]


def _template_call(call: ToolCall, all_objects: bool) -> dict[str, Any]:
    arguments = past_arguments(call.arguments)
    if all_objects and isinstance(arguments, str):
        arguments = {"arguments": arguments}
    function = {"name": call.name, "arguments": arguments}
    return ({"id": call.id} if call.id else {}) | {"type": "function", "function": function}


def past_arguments(text: str) -> dict[str, Any] | str:
    """Return the arguments of a call that was made: an object, or else the text that the model wrote.

    A call may have been cut off, or made by another model. An object that no prompt could show is a text too.
    """
    try:
        value = json.loads(text or "null", parse_constant=_refuse, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else {} if value is None else text


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _schema(tool: Tool, where: str) -> dict[str, Any]:
    accepted = "a JSON Schema of an object"
    schema = _object(tool.parameters, where, accepted)
    kind = schema.get("type", "object")
    if kind not in ("object", ["object"]):
        raise ChatRefused(where, tool.parameters, f"{accepted}, not of the type {kind!r}")
    return schema


def _object(text: str, where: str, accepted: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = schema_of(text)
    except (ValueError, RecursionError) as error:
        raise ChatRefused(where, text, f"{accepted} ({error})") from None
    if not isinstance(value, dict):
        raise ChatRefused(where, text, accepted)
    return value


class InContent(enum.StrEnum):
    """Meaning of the text of a control token that a caller wrote into a chat."""

    TEXT = "text"
    KEEP = "keep"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as received; unset fields are None. The fields are those of `inference.proto`."""

    request_id: str = ""
    model: str = ""
    tenant: str = ""
    user: str = ""
    text: str | None = None
    chat: Conversation | None = None
    token_ids: Sequence[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool | None = None
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    slo_class: int = 0
    allow_at_risk: bool = False
    resume_grace_ms: int = 0
    truncate_prompt_tokens: int | None = None
    session: int = 0
    received: tuple[tuple[int, tuple[int, ...]], ...] = ()
    failed_attempts: int = 0
    received_prompt_logprobs: int = 0
    output_format: tuple[str, str] | None = None
    """The field of `OutputFormat` that is set, and its text; the texts to choose from as JSON."""
    adapter: str = ""
    program: tuple[str, int | None] | None = None
    """The id and the deadline_ms of its program."""


def prompt_field(raw: RawRequest) -> str:
    """Return the path of the field with the prompt. Requests without a prompt have been refused before."""
    if raw.chat is not None:
        return "chat.messages"
    return "text" if raw.text is not None else "tokens.token_ids"


def prompt_bytes(raw: RawRequest) -> int:
    """Return the number of bytes to tokenise."""
    return len((raw.text or "").encode()) if raw.chat is None else raw.chat.num_bytes


@value
class Received:
    """The tokens of one choice that a client has from an earlier session; `finish` is set if they end it."""

    choice: int
    token_ids: tuple[int, ...]
    finish: FinishReason = FinishReason.NONE
    matched: Matched | None = None
    """The stop rule that ended it, if one did."""


@value
class Request:
    """A request that is validated and tokenised, as one call brings it.

    The core keeps it for as long as it holds the request, and makes the commands for workers from it.
    """

    tenant: str
    request_id: str
    session: int
    """The number of the call: Generate is 0, each Resume one more."""
    digest: bytes
    """A digest of the content, without the seed."""
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    seed_given: bool
    """The client gave `sampling.seed`; otherwise it was drawn."""
    stop: StopRules
    slo: Slo
    received_at: float
    """When the router received the call, on its clock in seconds."""
    resume_grace_s: float = 0.0
    """How long it runs on when the call breaks, if no other call is left."""
    received: tuple[Received, ...] = ()
    failed_attempts: int = 0
    """The number of attempts that failed in former sessions, as their routers told the client."""
    received_prompt_logprobs: int = 0
    """The number of prompt tokens whose log-probabilities the client has."""
    adapter: str = ""
    """The digest of its LoRA adapter; empty without one."""
    program: Program | None = None
    """The program that it is a call of."""
