"""Check the lengths of lists and prompts before they are converted: long ones cost nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import NoReturn

from google.protobuf import struct_pb2

from baton.v1 import generation_pb2, inference_pb2
from router.errors import Described, Reason, ValidationError
from router.intake.model_facts import ModelFacts
from router.intake.validation import MAX_N, check_prompt_tokens
from router.request import RawRequest, prompt_bytes, prompt_field

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOL_CALLS = 128
MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 256 << 10
MAX_TEMPLATE_BYTES = 64 << 10
MAX_TEMPLATE_DEPTH = 16
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED = 8192
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256


def check_sizes(
    message: inference_pb2.GenerateRequest,
    facts: ModelFacts,
    received: Sequence[inference_pb2.ReceivedTokens] = (),
) -> None:
    """Check a request and received tokens. Raises `ValidationError` naming the first overlong field."""
    check_chat_size(message.chat)
    if not message.HasField("truncate_prompt_tokens"):
        check_prompt_tokens("tokens.token_ids", len(message.tokens.token_ids), facts)
    _check_count("sampling.logit_bias", message.sampling.logit_bias, MAX_LOGIT_BIAS, "entries")
    _check_ban_sizes(message.sampling)
    _check_stop_sizes(message.stop)
    _check_count("received", received, MAX_N, "entries")
    for place, tokens in enumerate(received):
        field = f"received[{place}].token_ids"
        _check_count(field, tokens.token_ids, facts.max_context_tokens - 1, "tokens")


def check_prompt_bytes(raw: RawRequest, most_bytes: int) -> None:
    """Check a prompt before it is tokenised. Raises `ValidationError`, which does not show the prompt."""
    num_bytes = prompt_bytes(raw)
    if num_bytes > most_bytes:
        _refuse_prompt(prompt_field(raw), num_bytes, most_bytes, "bytes")


def check_token_count(field: str, num_tokens: int, most_tokens: int) -> None:
    """Check the length of a prompt in tokens; 0 accepts any. Raises `ValidationError` naming the field."""
    if most_tokens and num_tokens > most_tokens:
        _refuse_prompt(field, num_tokens, most_tokens, "tokens")


def _refuse_prompt(field: str, found: int, most: int, unit: str) -> NoReturn:
    accepted = f"up to {most} {unit}"
    raise ValidationError(field, Described(f"{found} {unit}"), accepted, Reason.PROMPT_TOO_LONG, limit=most)


def _check_ban_sizes(sampling: generation_pb2.SamplingParams) -> None:
    _check_count("sampling.allowed_token_ids", sampling.allowed_token_ids, MAX_ALLOWED, "token ids")
    _check_count("sampling.bad_words", sampling.bad_words, MAX_BAD_WORDS, "words")
    _check_lengths("sampling.bad_words", sampling.bad_words, 1, MAX_BAD_WORD_CHARS)


def check_chat_size(chat: inference_pb2.ChatInput) -> None:
    """Check the chat of any message; raises `ValidationError`."""
    _check_count("chat.messages", chat.messages, MAX_MESSAGES, "messages")
    for place, message in enumerate(chat.messages):
        where = f"chat.messages[{place}]"
        _check_count(f"{where}.parts", message.parts, MAX_PARTS, "parts")
        _check_count(f"{where}.tool_calls", message.tool_calls, MAX_TOOL_CALLS, "calls")
    _check_count("chat.tools", chat.tools, MAX_TOOLS, "tools")
    schema_bytes = sum(len(tool.parameters.encode()) for tool in chat.tools)
    if schema_bytes > MAX_SCHEMA_BYTES:
        accepted = f"at most {MAX_SCHEMA_BYTES} bytes of parameters in all"
        raise ValidationError(
            "chat.tools", Described(f"{schema_bytes} bytes"), accepted, limit=MAX_SCHEMA_BYTES
        )
    field, arguments = "chat.template_arguments", chat.template_arguments
    num_bytes = arguments.ByteSize()
    if num_bytes > MAX_TEMPLATE_BYTES:
        accepted = f"at most {MAX_TEMPLATE_BYTES} bytes"
        raise ValidationError(field, Described(f"{num_bytes} bytes"), accepted, limit=MAX_TEMPLATE_BYTES)
    if not _is_within(arguments, MAX_TEMPLATE_DEPTH):
        raise ValidationError(
            field,
            Described(f"over {MAX_TEMPLATE_DEPTH} levels deep"),
            "fewer levels",
            limit=MAX_TEMPLATE_DEPTH,
        )


def _is_within(struct: struct_pb2.Struct, depth: int) -> bool:
    """Return whether values are nested at most this deep. Goes level by level, without recursion."""
    values = list(struct.fields.values())
    while values and depth:
        depth -= 1
        inner: list[struct_pb2.Value] = []
        for value in values:
            inner.extend(value.struct_value.fields.values() if value.HasField("struct_value") else ())
            inner.extend(value.list_value.values if value.HasField("list_value") else ())
        values = inner
    return not values


def _check_stop_sizes(stop: generation_pb2.StopRules) -> None:
    _check_count("stop.stop_strings", stop.stop_strings, MAX_STOP_STRINGS, "strings")
    # `check_stop` refuses empty ones.
    _check_lengths("stop.stop_strings", stop.stop_strings, 0, MAX_STOP_STRING_CHARS)
    _check_count("stop.stop_token_ids", stop.stop_token_ids, MAX_STOP_TOKEN_IDS, "token ids")


def _check_count(field: str, entries: Sized, limit: int, unit: str) -> None:
    if len(entries) > limit:
        raise ValidationError(field, Described(f"{len(entries)} {unit}"), f"at most {limit}", limit=limit)


def _check_lengths(field: str, texts: Iterable[str], least: int, limit: int) -> None:
    for place, text in enumerate(texts):
        if not least <= len(text) <= limit:
            found, accepted = Described(f"{len(text)} characters"), f"1 to {limit} characters"
            raise ValidationError(f"{field}[{place}]", found, accepted, limit=limit)
