"""Tool calls and reasoning in the text of a choice, as the fleet says that the model writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import baton
from baton.types import Accepted, Completion
from chat_formats import ChatFormats, OutputParser, Tool


def parser_of(chat: baton.Chat, accepted: Accepted | Completion, choice: int) -> OutputParser | None:
    """Return the parser of one choice's text; None if the text is only text."""
    formats = ChatFormats(accepted.tool_format, accepted.reasoning_format)
    if formats == ChatFormats():
        return None
    return OutputParser(
        formats,
        [Tool(tool.name, parameters=_schema(tool)) for tool in chat.tools],
        seed=f"{accepted.request_id}/{choice}",
        reasoning_open=accepted.reasoning_open,
    )


def _schema(tool: baton.Tool) -> Mapping[str, Any]:
    return json.loads(tool.parameters or "{}") if isinstance(tool.parameters, str) else tool.parameters
