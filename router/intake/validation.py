"""Check that every field of a request is inside its range of `generation.proto`; errors name the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from model_output.formats import ChatFormats, are_calls_unlike_json
from router.errors import SET, DeadlineExpired, Described, ModelNotFound, Reason, ValidationError
from router.intake.helpers.chat_template import ChatTemplate
from router.intake.model_facts import ModelFacts
from router.request import ChatOptions, Conversation, Message, RawRequest, Received, ToolMode, prompt_field
from scheduling.request import (
    MAX_SLO_MS,
    FinishReason,
    Program,
    SamplingParams,
    Slo,
    SloClass,
    StopRules,
    leaves_a_token,
    matched,
)

_T = TypeVar("_T")

MAX_NAME_CHARS = 128
MAX_N = 16
MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 256
MAX_RESUME_GRACE_MS = 60_000
MAX_GRAMMAR_BYTES = 256 << 10
JSON_KINDS = ("json_schema", "json_object")
"""The kinds of formats that are JSON."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_model(model: str, facts: ModelFacts) -> None:
    """Raise unless `model` is empty or a name of the fleet's model."""
    names = (facts.name, *facts.more_names)
    if model and model not in names:
        raise ModelNotFound(model, names)


def checked_adapter(adapter: str, known: Mapping[str, str], refused: Mapping[str, str]) -> str:
    """Return the digest of an adapter; `known` are those of the fleet, by name. Empty without an adapter.

    `refused` are the reasons why workers cannot serve others, by name.
    """
    if not adapter:
        return ""
    if adapter not in known and adapter in refused:
        accepted = f"an adapter that can be served; of this one, {refused[adapter]}"
        raise ValidationError("adapter", adapter, accepted)
    if adapter not in known:
        names = ", ".join(map(repr, sorted(known)))
        accepted = f"{names}, or leave it empty" if names else "leave it empty: no worker has an adapter"
        raise ValidationError("adapter", adapter, accepted)
    return known[adapter]


def check_name(field_name: str, value: str) -> None:
    """Raise unless a name is short and printable: names are parts of keys and logs."""
    if len(value) > MAX_NAME_CHARS or not all(" " <= char <= "~" for char in value):
        raise ValidationError(field_name, value, f"up to {MAX_NAME_CHARS} printable ASCII characters")


def check_before_tokenising(
    raw: RawRequest, facts: ModelFacts, inputs: tuple[str, ...] = ("text", "chat", "tokens")
) -> None:
    """Check everything that needs no tokens, so that a wrong request costs no tokenisation.

    `inputs` are the fields of the message that can hold a prompt.
    """
    check_name("request_id", raw.request_id)
    check_name("tenant", raw.tenant)
    check_name("user", raw.user)
    check_model(raw.model, facts)
    _check_input(raw, facts, inputs)
    _check_range("resume_grace_ms", raw.resume_grace_ms, 0, MAX_RESUME_GRACE_MS)
    if raw.truncate_prompt_tokens == 0:
        raise ValidationError("truncate_prompt_tokens", 0, "1 or more, or unset")


def _check_input(raw: RawRequest, facts: ModelFacts, inputs: tuple[str, ...]) -> None:
    if raw.text is None and raw.chat is None and raw.token_ids is None:
        raise ValidationError("text", Described("unset"), f"one of {' and '.join(inputs)}", also=inputs[1:])
    if raw.text == "":
        raise ValidationError("text", raw.text, "at least one character")
    if raw.chat is not None:
        if facts.chat_template is None:
            raise ValidationError("chat", SET, "another kind of prompt: this model has no chat template")
        check_chat(raw.chat, facts.chat_template, facts.formats)


_SAMPLING_RANGES = {
    "temperature": (0, 100),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "n": (1, MAX_N),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
_SAMPLING_FIELDS = (*_SAMPLING_RANGES, "top_k", "top_p", "repetition_penalty", "seed")


def checked_sampling(raw: RawRequest, facts: ModelFacts, drawn_seed: int) -> SamplingParams:
    """Return the sampling parameters with every default filled in."""
    vocab_size = facts.vocab_size
    given = {name: getattr(raw, name) for name in _SAMPLING_FIELDS if getattr(raw, name) is not None}
    defaults: dict[str, Any] = {**facts.sampling_defaults, "seed": drawn_seed}
    sampling = SamplingParams(
        **(defaults | given),
        logit_bias=tuple(sorted(raw.logit_bias.items())),
        allowed_token_ids=tuple(sorted(set(raw.allowed_token_ids))),
    )
    for name, (low, high) in _SAMPLING_RANGES.items():
        if name in given:
            _check_range(f"sampling.{name}", given[name], low, high)
    if not 0 < sampling.top_p <= 1:
        raise ValidationError("sampling.top_p", sampling.top_p, "over 0, up to 1")
    if not 0 < sampling.repetition_penalty < float("inf"):
        raise ValidationError("sampling.repetition_penalty", sampling.repetition_penalty, "over 0, finite")
    _check_token_ids("sampling.allowed_token_ids", raw.allowed_token_ids, vocab_size)
    for token_id, bias in sampling.logit_bias:
        field_name = f"sampling.logit_bias[{token_id}]"
        if token_id >= vocab_size:
            raise ValidationError(field_name, bias, f"token ids of 0 to {vocab_size - 1} as keys")
        _check_range(field_name, bias, -100, 100)
    return sampling


def check_bans(sampling: SamplingParams, stop: StopRules, facts: ModelFacts) -> None:
    """Raise if at some place no token could be drawn. The bad words have been tokenised."""
    if leaves_a_token(sampling, stop, facts.eos_token_ids, facts.vocab_size):
        return
    field = "sampling.allowed_token_ids" if sampling.allowed_token_ids else "sampling.bad_words"
    raise ValidationError(
        field,
        Described("a set of rules that forbids every token"),
        "a token that no bad word ends with and that, with min_tokens, does not end the choice",
        also=("stop.min_tokens",) if stop.min_tokens else (),
    )


def check_output_format(raw: RawRequest, formats: ChatFormats) -> None:
    """Raise if the output format is empty or too long, or beside a rule that could contradict it.

    Tools that a choice has to call by rules are a format too.
    """
    if raw.output_format is not None:
        kind, text = raw.output_format
        name = f"output_format.{kind}"
        if not text or text == "[]":
            raise ValidationError(name, text, "at least one text, none empty")
        if len(text.encode()) > MAX_GRAMMAR_BYTES:
            num_bytes = Described(f"{len(text.encode())} bytes")
            accepted = f"at most {MAX_GRAMMAR_BYTES} bytes"
            raise ValidationError(name, num_bytes, accepted, limit=MAX_GRAMMAR_BYTES)
        if raw.chat is not None and raw.chat.shown_tools:
            _check_beside_tools(kind, formats)
        _check_beside(raw, name)
    elif raw.chat is not None and raw.chat.forces_a_call:
        _check_beside(raw, "a chat.tool_choice that forces a call")
    elif raw.chat is not None and raw.chat.guides_calls:
        _check_beside(raw, "strict tools and parallel_tool_calls = false")


def _check_beside_tools(kind: str, formats: ChatFormats) -> None:
    """Raise unless calls and texts in the format can be told apart."""
    accepted = ""
    if kind not in JSON_KINDS:
        accepted = "unset, or a format of JSON, beside chat.tools"
    elif not are_calls_unlike_json(formats):
        accepted = "unset beside chat.tools: this model's calls cannot be told from JSON"
    if accepted:
        raise ValidationError("output_format", SET, accepted, also=("chat.tools",))


def _check_beside(raw: RawRequest, name: str) -> None:
    for field_name, value in (
        ("sampling.allowed_token_ids", raw.allowed_token_ids),
        ("sampling.bad_words", raw.bad_words),
        ("stop.min_tokens", raw.min_tokens),
        ("stop.ignore_eos", raw.ignore_eos),
    ):
        if value:
            raise ValidationError(field_name, value, f"unset, beside {name}")


def checked_slo(raw: RawRequest) -> Slo:
    """Return the SLO. A deadline of 0 has passed on arrival."""
    if raw.slo_class not in (0, *SloClass):
        accepted = ", ".join(f"SLO_CLASS_{slo_class.name}" for slo_class in SloClass)
        raise ValidationError("slo.slo_class", raw.slo_class, accepted)
    if raw.deadline_ms == 0:
        raise DeadlineExpired(raw.deadline_ms)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "deadline_ms"):
        value = getattr(raw, name)
        if value is not None and not 1 <= value <= MAX_SLO_MS:
            raise ValidationError(f"slo.{name}", value, f"1 to {MAX_SLO_MS} (a day), or unset")
    slo_class = SloClass(raw.slo_class or SloClass.STANDARD)
    return Slo(raw.ttft_ms, raw.tpot_ms, raw.deadline_ms, slo_class, raw.allow_at_risk, raw.itl_ms)


def checked_program(raw: RawRequest) -> Program | None:
    """Return the program that a request is a call of; None if it is none. Its time may be over."""
    if raw.program is None:
        return None
    program_id, deadline_ms = raw.program
    if not program_id:
        raise ValidationError("program.id", program_id, f"1 to {MAX_NAME_CHARS} printable ASCII characters")
    check_name("program.id", program_id)
    if deadline_ms is None or deadline_ms > MAX_SLO_MS:
        value = Described("unset") if deadline_ms is None else deadline_ms
        raise ValidationError("program.deadline_ms", value, f"0 to {MAX_SLO_MS} (a day)")
    return Program(program_id, deadline_ms)


def check_stop(raw: RawRequest, vocab_size: int) -> None:
    """Check what can be checked of the stop rules without the prompt."""
    if raw.max_tokens == 0:
        raise ValidationError("stop.max_tokens", 0, "1 or more, or unset")
    if raw.max_tokens is not None and raw.min_tokens > raw.max_tokens:
        raise ValidationError(
            "stop.min_tokens", raw.min_tokens, f"at most stop.max_tokens, which is {raw.max_tokens}"
        )
    for place, text in enumerate(raw.stop_strings):
        if not text:
            raise ValidationError(f"stop.stop_strings[{place}]", text, "at least one character")
    _check_token_ids("stop.stop_token_ids", raw.stop_token_ids, vocab_size)


def check_prompt_tokens(field_name: str, num_tokens: int, facts: ModelFacts) -> None:
    """Raise if the prompt leaves no room for one more token."""
    most = facts.max_context_tokens - 1
    if num_tokens > most:
        raise ValidationError(
            field_name,
            Described(f"{num_tokens} tokens"),
            f"at most {most} tokens, so that one more fits the model's context",
            Reason.PROMPT_TOO_LONG,
            limit=most,
        )


def checked_stop(
    raw: RawRequest, token_ids: Sequence[int], facts: ModelFacts, *, skips_special_tokens: bool = True
) -> StopRules:
    """Check the prompt against the model's context, and return the stop rules that leave room for it."""
    if not token_ids:
        raise ValidationError(prompt_field(raw), Described("empty"), "a prompt of at least one token")
    check_prompt_tokens(prompt_field(raw), len(token_ids), facts)
    _check_token_ids("tokens.token_ids", token_ids, facts.vocab_size)
    max_tokens = min(_or(raw.max_tokens, DEFAULT_MAX_TOKENS), facts.max_context_tokens - len(token_ids))
    if raw.min_tokens > max_tokens:
        raise ValidationError(
            "stop.min_tokens", raw.min_tokens, f"at most {max_tokens}, as max_tokens or the context allows"
        )
    return StopRules(
        max_tokens=max_tokens,
        min_tokens=raw.min_tokens,
        stop_strings=raw.stop_strings,
        stop_token_ids=raw.stop_token_ids,
        ignore_eos=raw.ignore_eos,
        include_stop=raw.include_stop,
        skip_special_tokens=_or(raw.skip_special_tokens, skips_special_tokens),
    )


def checked_received(
    raw: RawRequest, prompt_tokens: int, stop: StopRules, facts: ModelFacts
) -> tuple[Received, ...]:
    """Return what the client has of each choice, which must be possible with these stop rules."""
    most = 0 if raw.prompt_logprobs is None else prompt_tokens - 1
    _check_range("received_prompt_logprobs", raw.received_prompt_logprobs, 0, most)
    seen: set[int] = set()
    checked = []
    for place, (choice, token_ids) in enumerate(raw.received):
        _check_range(f"received[{place}].choice", choice, 0, _or(raw.n, 1) - 1)
        if choice in seen:
            raise ValidationError(f"received[{place}].choice", choice, "each choice once")
        seen.add(choice)
        name = f"received[{place}].token_ids"
        if len(token_ids) > stop.max_tokens:
            raise ValidationError(
                name, Described(f"{len(token_ids)} tokens"), f"at most max_tokens, which is {stop.max_tokens}"
            )
        _check_token_ids(name, token_ids, facts.vocab_size)
        finish = finish_of(token_ids, stop, facts.eos_token_ids)
        match = matched(finish, token_ids[-1], None, stop) if token_ids else None
        checked.append(Received(choice, token_ids, finish, match))
    return tuple(checked)


def check_token_ids(token_ids: Sequence[int], facts: ModelFacts) -> None:
    """Check token ids to detokenize: known ones, and no more than a context holds."""
    if len(token_ids) > facts.max_context_tokens:
        found = Described(f"{len(token_ids)} tokens")
        raise ValidationError("token_ids", found, f"at most {facts.max_context_tokens}")
    _check_token_ids("token_ids", token_ids, facts.vocab_size)


def check_resumption(raw: RawRequest) -> None:
    """Check that a resumption names its request and a session of 1 or more: `Generate` is session 0."""
    if not raw.request_id:
        raise ValidationError("request_id", raw.request_id, "the id in Accepted")
    if raw.session < 1:
        raise ValidationError(
            "session", raw.session, "1 or more: one more than the session of the call that broke"
        )


def finish_of(token_ids: Sequence[int], stop: StopRules, eos_token_ids: frozenset[int]) -> FinishReason:
    """Return whether these tokens end a choice, without regard to stop strings (see `model_output.text`)."""
    if not token_ids:
        return FinishReason.NONE
    if len(token_ids) >= stop.min_tokens:
        if token_ids[-1] in stop.stop_token_ids:
            return FinishReason.STOP
        if token_ids[-1] in eos_token_ids and not stop.ignore_eos:
            return FinishReason.EOS
    return FinishReason.LENGTH if len(token_ids) >= stop.max_tokens else FinishReason.NONE


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and max(token_ids) >= vocab_size:
        place = next(place for place, token_id in enumerate(token_ids) if token_id >= vocab_size)
        raise ValidationError(f"{name}[{place}]", token_ids[place], f"0 to {vocab_size - 1}")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValidationError(name, value, f"{low:g} to {high:g}")


# Chats: they say what their model's template can show, and ask for tools that exist


def check_chat(chat: Conversation, template: ChatTemplate, formats: ChatFormats) -> None:
    """Raise `ValidationError` for the first wrong field. JSON is checked later, beside the tokenizer."""
    if not chat.messages:
        raise ValidationError("chat.messages", [], "at least one message")
    _check_options(chat, template)
    for place, message in enumerate(chat.messages):
        _check_message(message, f"chat.messages[{place}]", template)
    if chat.tools:
        _check_tools(chat, template)
    _check_tool_choice(chat, formats)


def _check_options(chat: Conversation, template: ChatTemplate) -> None:
    options: ChatOptions = chat.options
    reserved = template.reserved | ({"tools"} if chat.tools else set())
    for name in options.arguments:
        if name in reserved:
            taken = ", ".join(sorted(reserved))
            raise ValidationError("chat.template_arguments", name, f"names other than {taken}")
    if options.add_generation_prompt and options.continue_final_message:
        raise ValidationError(
            "chat.continue_final_message", True, "true only without chat.add_generation_prompt"
        )


def _check_message(message: Message, where: str, template: ChatTemplate) -> None:
    if not message.role:
        raise ValidationError(f"{where}.role", message.role, "a role of the chat template, such as user")
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning"):
            if getattr(message, name):
                raise ValidationError(f"{where}.{name}", SET, "unset, unless the role is assistant")
    if message.tool_calls and not template.shows_calls:
        raise ValidationError(
            f"{where}.tool_calls", SET, "unset: the model's chat template does not show them"
        )
    for place, call in enumerate(message.tool_calls):
        if not call.name:
            raise ValidationError(f"{where}.tool_calls[{place}].name", call.name, "the name of a tool")


def _check_tools(chat: Conversation, template: ChatTemplate) -> None:
    if not template.shows_tools:
        raise ValidationError("chat.tools", SET, "unset: the model's chat template does not show them")
    seen: set[str] = set()
    for place, tool in enumerate(chat.tools):
        where = f"chat.tools[{place}].name"
        if not _TOOL_NAME.fullmatch(tool.name):
            raise ValidationError(where, tool.name, "1 to 128 letters, digits, underscores and hyphens")
        if tool.name in seen:
            raise ValidationError(where, tool.name, "each name once")
        seen.add(tool.name)


def _check_tool_choice(chat: Conversation, formats: ChatFormats) -> None:
    has_choice = bool(chat.tool_mode) or chat.named_tool is not None
    for name, is_set in (
        ("chat.tool_choice", has_choice),
        ("chat.parallel_tool_calls", chat.parallel_tool_calls is not None),
    ):
        if is_set and not chat.tools:
            raise ValidationError(name, SET, "unset, without chat.tools")
    if chat.tool_mode not in (0, *ToolMode):
        accepted = ", ".join(f"TOOL_MODE_{mode.name}" for mode in ToolMode)
        raise ValidationError("chat.tool_choice.mode", chat.tool_mode, accepted)
    names = [tool.name for tool in chat.tools]
    if chat.named_tool is not None and chat.named_tool not in names:
        raise ValidationError("chat.tool_choice.name", chat.named_tool, f"one of {', '.join(names)}")
    if formats.tools:
        return
    unknown = "it is not known how this model writes calls"
    if chat.forces_a_call:
        raise ValidationError("chat.tool_choice", Described("a forced call"), f"auto or none: {unknown}")
    if chat.guides_calls:
        field = "chat.parallel_tool_calls"
        if chat.parallel_tool_calls is not False:
            place = next(place for place, tool in enumerate(chat.tools) if tool.strict)
            field = f"chat.tools[{place}].strict"
        raise ValidationError(field, SET, f"the default: {unknown}")
