"""Tool calls and reasoning in the text of a choice, as the fleet says that the model writes them."""

from __future__ import annotations

from baton import parsing
from baton.chat import Chat
from baton.types import Accepted, Completion, FinishReason
from chat_formats import OutputParser
from gateway.generations import Generation


def parser_of(generation: Generation, accepted: Accepted | Completion, choice: int) -> OutputParser | None:
    """Return the parser of one choice's text; None if the text is only text. The prompt is a chat."""
    if not accepted.tool_format and not accepted.reasoning_format:
        return None
    assert isinstance(generation.prompt, Chat)
    has_format = generation.output_format is not None
    return parsing.parser_of(generation.prompt.tools, accepted, choice, has_format=has_format)


def end_of(reason: FinishReason, parser: OutputParser | None) -> FinishReason:
    """Return how a choice ended, whose parser has read all of it.

    An output with a call that a stop rule cut off is as incomplete as one that reached its limit, which is
    what clients know of calls that must not run.
    """
    return FinishReason.LENGTH if has_cut_call(parser) and reason is FinishReason.STOP else reason


def has_cut_call(parser: OutputParser | None) -> bool:
    """Return whether a call broke off in what a parser has read: it must not be told as one to run."""
    return parser is not None and parser.has_cut_call
