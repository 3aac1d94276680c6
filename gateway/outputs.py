"""Tool calls and reasoning in the text of a choice, as the fleet says that the model writes them."""

from __future__ import annotations

from baton import parsing
from baton.chat import Chat
from baton.types import Accepted, Completion
from chat_formats import OutputParser
from gateway.generations import Generation


def parser_of(generation: Generation, accepted: Accepted | Completion, choice: int) -> OutputParser | None:
    """Return the parser of one choice's text; None if the text is only text. The prompt is a chat."""
    if not accepted.tool_format and not accepted.reasoning_format:
        return None
    assert isinstance(generation.prompt, Chat)
    has_format = generation.output_format is not None
    return parsing.parser_of(generation.prompt.tools, accepted, choice, has_format=has_format)
