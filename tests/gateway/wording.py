"""The words that errors over HTTP must not have: those of Python, of gRPC and of libraries."""

from __future__ import annotations

import re

from baton.v1 import generation_pb2, inference_pb2

_OUTER = ("sampling", "stop", "chat", "tokens")
_NOT_IN_HTTP = {
    name
    for message in (
        inference_pb2.GenerateRequest,
        inference_pb2.ChatInput,
        generation_pb2.SamplingParams,
        generation_pb2.StopRules,
    )
    for name in message.DESCRIPTOR.fields_by_name
} & {"output_format", "request_id", "template_arguments", "stop_strings", "token_ids"}
_FOREIGN = re.compile(
    r"Input should|Invalid JSON|\b(?:None|True|False)\b|\(\d+,\)|[\[{]'|"
    rf"\b(?:{'|'.join(_OUTER)})\.[a-z]|\b(?:{'|'.join(sorted(_NOT_IN_HTTP))})\b|"
    r"TOOL_MODE|SLO_CLASS|coerce_|InternalError|out of range|\n"
)


def foreign_words(message: str) -> list[str]:
    """The words of a message that its HTTP caller cannot know."""
    return _FOREIGN.findall(message)
