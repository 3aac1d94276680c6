"""Tool calls and reasoning in the text of a choice, as the fleet says that the model writes them."""

from __future__ import annotations

from baton import parsing
from baton.chat import Chat
from baton.types import Accepted, Completion
from chat_formats import OutputParser


def parser_of(chat: Chat, accepted: Accepted | Completion, choice: int) -> OutputParser | None:
    """Return the parser of one choice's text; None if the text is only text."""
    if not accepted.tool_format and not accepted.reasoning_format:
        return None
    return parsing.parser_of(chat.tools, accepted, choice)
