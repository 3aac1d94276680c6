"""Conversion of OpenAI's requests to the SDK's types, and of the contract's field names back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from baton import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
from baton.types import Grammar, JsonObject, JsonSchema, OneOf, OutputFormat, Regex, Sampling, Stop
from baton.types.chat import Prompt, ToolChoice
from baton.wire.fields import shown
from gateway.openai.schema import (
    ChatBody,
    CompletionBody,
    Function,
    FunctionTool,
    GenerationBody,
    Message,
    SamplingFields,
    TokenizeBody,
)
from gateway.serving.bodies import TEXTS, leave_out, leave_out_unless, read_tools, text_of
from gateway.serving.errors import invalid, renamed
from gateway.serving.generations import ID_HEADER, Generation, seed_of, user_of
from gateway.serving.slo import program_of, slo_of

_FUNCTION = "function"
_TEXTS = {"text": "text", "refusal": "refusal"}
"""The parts of an assistant's message, and where their texts are."""


def chat_of(body: ChatBody | TokenizeBody) -> Chat:
    """Return the chat of a body that has messages; raises `ApiError`."""
    assert body.messages is not None
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    tools = [tool_of(tool.function) for tool in read_tools(FunctionTool, body.tools, _FUNCTION)]
    choice = tool_choice_of(body.tool_choice, has_tools=bool(tools))
    if body.parallel_tool_calls is not None and not body.tools:
        leave_out("parallel_tool_calls", "parallel_tool_calls is set; accepted: with tools")
    return Chat(
        [*_messages(body.messages)],
        effort | (body.chat_template_kwargs or {}),
        body.add_generation_prompt,
        body.continue_final_message,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
    )


def prompt_of(body: TokenizeBody) -> Prompt:
    """Return the text or chat whose tokens are asked for. Raises `ApiError`."""
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "prompt and messages are both set or both missing; accepted: one of them")
    has_special = body.prompt is not None
    if body.add_special_tokens not in {None, has_special}:
        name, accepted = "add_special_tokens", "true for a prompt, and false for messages"
        raise invalid(name, f"{name} is {str(body.add_special_tokens).lower()}; accepted: {accepted}")
    return body.prompt if body.prompt is not None else chat_of(body)


def tool_of(function: Function) -> Tool:
    parameters = function.parameters or {}
    return Tool(function.name, function.description or "", parameters, strict=bool(function.strict))


def tool_choice_of(
    choice: str | dict[str, Any] | None, *, has_tools: bool, nests: bool = True
) -> ToolChoice | None:
    """Return which tools may be called. Raises `ApiError`.

    Chats nest what names a function in `function`. Responses have it beside the type.
    """
    match choice:
        case None:
            return None
        case "none" | "auto" if not has_tools:
            return None
        case "none" | "auto" | "required" as mode if has_tools:
            return ToolMode(mode)
        case {"type": "function", "function": {"name": str(name)}} if has_tools and nests:
            return NamedTool(name)
        case {"type": "function", "name": str(name)} if has_tools and not nests:
            return NamedTool(name)
    accepted = "'none' or 'auto', as tools has no function"
    if has_tools:
        named = '"function": {"name": ...}' if nests else '"name": ...'
        accepted = f"""'none', 'auto', 'required', or {{"type": "function", {named}}} of one of the tools"""
    raise invalid("tool_choice", f"tool_choice is {shown(choice)}; accepted: {accepted}")


def _messages(given: Sequence[Message]) -> Iterator[ChatMessage]:
    """Yield the messages, without calls of other tools than functions, and without their results."""
    names: dict[str, str] = {}
    left: set[str] = set()
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if message.tool_call_id in left:
            leave_out(where, f"{where} is the result of a call of no function; accepted: one of a function")
            continue
        calls = []
        for place, call in enumerate(message.tool_calls or ()):
            if call.type == _FUNCTION and call.function is not None:
                names[call.id] = call.function.name
                calls.append(ToolCall(call.id, call.function.name, call.function.arguments))
                continue
            name = f"{where}.tool_calls[{place}]"
            if call.type == _FUNCTION:
                raise invalid(f"{name}.function", f"{name}.function is missing")
            leave_out(name, f"{name}.type is {shown(call.type)}; accepted: {_FUNCTION!r}")
            left.add(call.id)
        if calls or not message.tool_calls or message.content or message.reasoning_content:
            yield _message(message, where, calls, names)


def _message(
    message: Message, where: str, calls: Sequence[ToolCall], names: Mapping[str, str]
) -> ChatMessage:
    """Return a message; `names` has the tools of all calls before it by their ids."""
    is_assistants = message.role == "assistant"
    content = message.content or message.refusal
    if message.content is None and not calls and not is_assistants:
        raise invalid(f"{where}.content", f"{where}.content is missing; accepted: a text, or parts of text")
    call_id = message.tool_call_id or ""
    return ChatMessage(
        "system" if message.role == "developer" else message.role,
        text_of(content or "", f"{where}.content", _TEXTS if is_assistants else TEXTS),
        tool_calls=calls,
        tool_call_id=call_id,
        name=message.name or names.get(call_id, ""),
        reasoning=message.reasoning_content or message.reasoning or "",
    )


MAX_PROMPTS = 128
"""Each prompt is a request to the fleet, with a stream of its own."""

_MAX_DIGITS = 10
"""More digits than any token id has, and few enough for Python to read."""
_RENAMED = {
    "adapter": "model",
    "stop.strings": "stop",
    "stop.stop_strings": "stop",
    "stop.include_stop": "include_stop_str_in_output",
    "tokens.token_ids": "prompt",
    "token_ids": "tokens",
    "text": "prompt",
    "chat.template_arguments": "chat_template_kwargs",
    "chat.tools[].name": "tools[].function.name",
    "chat.tools[].parameters": "tools[].function.parameters",
    "chat.tools[].strict": "tools[].function.strict",
    "chat.tool_choice.name": "tool_choice.function.name",
    "chat.messages[].tool_calls[].name": "messages[].tool_calls[].function.name",
    "chat.messages[].tool_calls[].arguments": "messages[].tool_calls[].function.arguments",
    "output_format.json_schema": "response_format.json_schema.schema",
    "output_format": "response_format",
    "request_id": "Idempotency-Key",
}


def param_of(field: str, body: GenerationBody | None = None) -> str:
    """Return the name in the HTTP body of a field of the contract: `sampling.top_p` is `top_p`.

    Some fields have several names, of which `body` decides.
    """
    return "messages" if field == "chat" else renamed(field, _RENAMED | _names_in(body))


def _names_in(body: GenerationBody | None) -> dict[str, str]:
    """Return the names of fields that have others in another body."""
    names: dict[str, str] = {}
    if body is not None and body.structured_outputs is not None:
        names["output_format.json_schema"] = "structured_outputs.json"
        names["output_format"] = "structured_outputs"
    if isinstance(body, ChatBody):
        names["sampling.logprobs"] = "top_logprobs"
        if body.max_completion_tokens is not None:
            names["stop.max_tokens"] = "max_completion_tokens"
    return names


def chat_generation(body: ChatBody, headers: Mapping[str, str], context_tokens: int) -> Generation:
    """Return the generation of a chat; raises `ApiError`. Without a limit the answer may fill the context."""
    if body.max_tokens is not None and body.max_completion_tokens not in {None, body.max_tokens}:
        name, both = "max_completion_tokens", f"{body.max_completion_tokens} and max_tokens {body.max_tokens}"
        raise invalid(name, f"{name} is {both}; accepted: one of them, or both alike")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs is set; accepted: with logprobs = true")
    leave_out_unless("store", body.store, False, ", as this fleet does not store chats")
    leave_out_unless("verbosity", body.verbosity, "medium")
    if set(body.modalities or ()) - {"text"}:
        raise invalid("modalities", f"modalities is {shown(body.modalities)}; accepted: ['text']")
    _check_common(body)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return Generation(
        chat_of(body),
        sampling_of(body, headers, body.n, logprobs=(body.top_logprobs or 0) if body.logprobs else None),
        stop_of(body, context_tokens if limit is None else limit),
        slo_of(body.slo, headers),
        headers.get(ID_HEADER, ""),
        body.truncate_prompt_tokens,
        _output_format(body),
        cancel_when_closed=not headers.get(ID_HEADER),
        user=user_of(body.user or body.safety_identifier),
        program=program_of(body.program, headers),
    )


def completion_generations(body: CompletionBody, headers: Mapping[str, str]) -> list[Generation]:
    """Return one generation for each prompt; raises `ApiError`."""
    if not body.add_special_tokens:
        message = "add_special_tokens is false; accepted: true, or a prompt of token ids"
        raise invalid("add_special_tokens", message)
    _check_common(body)
    prompts = _prompts(body)
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    if body.echo and max_tokens == 0:
        max_tokens = 1  # only the prompt is returned, but a generation has at least one token
    request_id, prompt_logprobs = headers.get(ID_HEADER, ""), body.logprobs if body.echo else None
    first = Generation(
        prompts[0],
        sampling_of(body, headers, body.n, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs),
        stop_of(body, max_tokens),
        slo_of(body.slo, headers),
        request_id,
        body.truncate_prompt_tokens,
        _output_format(body),
        cancel_when_closed=not request_id,
        user=user_of(body.user),
        program=program_of(body.program, headers),
    )
    if len(prompts) == 1:
        return [first]
    ids = [f"{request_id}-{index}" if request_id else "" for index in range(len(prompts))]
    return [replace(first, prompt=prompt, request_id=own) for prompt, own in zip(prompts, ids, strict=True)]


def _check_common(body: GenerationBody) -> None:
    """Raise `ApiError` for choices that nobody would choose from, and for options of no stream."""
    if body.best_of not in {None, body.n or 1}:
        raise invalid("best_of", f"best_of is {body.best_of}; accepted: n ({body.n or 1}), or unset")
    if body.stream_options is not None:
        if not body.stream:
            raise invalid("stream_options", "stream_options is set; accepted: with stream = true")
        leave_out_obfuscation(body.stream_options.include_obfuscation)


def leave_out_obfuscation(value: bool | None) -> None:
    leave_out_unless("stream_options.include_obfuscation", value, False, ", as no event is padded")


def _output_format(body: ChatBody | CompletionBody) -> OutputFormat | None:
    """Return the format that `response_format` or vLLM's `structured_outputs` asks for; raises `ApiError`."""
    asked, structured = body.response_format, body.structured_outputs
    if structured is not None:
        given = structured.model_dump(exclude_none=True, by_alias=True)
        if len(given) != 1 or asked is not None:
            raise invalid(
                "structured_outputs",
                f"structured_outputs has {', '.join(given) or 'nothing'}; accepted: one of json, "
                "json_object, regex, choice and grammar, without response_format",
            )
        (kind,) = given
        return _STRUCTURED[kind](given[kind])
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return JsonObject()
    if asked.json_schema is None:
        name = "response_format.json_schema"
        raise invalid(name, f"{name} is missing; accepted: an object with a schema")
    return JsonSchema(asked.json_schema.schema_ if asked.json_schema.schema_ is not None else {})


_STRUCTURED: dict[str, Callable[[Any], OutputFormat]] = {
    "json": JsonSchema,
    "json_object": lambda _: JsonObject(),
    "regex": Regex,
    "choice": OneOf,
    "grammar": Grammar,
}


def _prompts(body: CompletionBody) -> list[Prompt]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "prompt is []; accepted: a text, token ids, or a list of either")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"prompt has {len(prompt)} prompts; accepted: at most {MAX_PROMPTS}")
    return list(prompt)


def sampling_of(
    body: SamplingFields,
    headers: Mapping[str, str],
    n: int | None = None,
    *,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """Return how a body samples. Raises `ApiError`."""
    return Sampling(
        temperature=body.temperature,
        top_k=0 if body.top_k == -1 else body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_logit_bias(body),
        seed=seed_of(body.seed, headers),
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=tuple(body.bad_words or ()),
    )


def _logit_bias(body: SamplingFields) -> dict[int, float]:
    biases = body.logit_bias or {}
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS):
            message = f"logit_bias has the key {shown(key, 80)}; accepted: token ids, such as '50256'"
            raise invalid("logit_bias", message)
    return {int(key): bias for key, bias in biases.items()}


def stop_of(body: SamplingFields, max_tokens: int) -> Stop:
    """Return when a body's choices end."""
    strings = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return Stop(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        strings=tuple(strings),
        token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
    )
