"""The events of a stream, and whole completions, by what they say: content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.errors import Unsupported
from baton.types import (
    Accepted,
    Choice,
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    PromptLogprobs,
    Queued,
    Tokens,
)
from baton.types.chat import ChatMessage
from baton.types.deltas import ContentDelta, Delta, said_by_assistant


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """More content, reasoning or tool calls of one choice."""

    choice: int
    delta: Delta


ParsedEvent = Accepted | Queued | PromptLogprobs | ChoiceDelta | ChoiceFinished | Finished
"""An event of a stream, with deltas in place of tokens."""


def deltas_of(said: Tokens | Choice, accepted: Accepted | Completion) -> Sequence[Delta]:
    """Return what tokens, or a whole choice, say. Raises `Unsupported` as `check_reads` does."""
    if accepted.has_deltas:
        return said.deltas
    check_reads(accepted)
    return (ContentDelta(said.text),) if said.text else ()


def check_reads(accepted: Accepted | Completion) -> None:
    """Raise `Unsupported` if texts write calls or reasoning, and the router does not read them."""
    if not accepted.has_deltas and (accepted.tool_format or accepted.reasoning_format):
        raise Unsupported("the router is older than this client: it does not read tool calls and reasoning")


def message_of(completion: Completion, choice: int = 0) -> ChatMessage:
    """Return a choice as the assistant's message of the next request."""
    return said_by_assistant(deltas_of(completion.choices[choice], completion))


class EventParser:
    """Replaces the tokens of a stream's events by what they say."""

    def __init__(self) -> None:
        self._accepted: Accepted | None = None

    def feed(self, event: Event) -> list[ParsedEvent]:
        """Return what one event says. Raises `Unsupported` as `check_reads` does."""
        match event:
            case Tokens(choice=choice):
                assert self._accepted is not None, "a stream begins with Accepted"
                return [ChoiceDelta(choice, delta) for delta in deltas_of(event, self._accepted)]
            case ChoiceFinished(choice=choice):
                return [*(ChoiceDelta(choice, delta) for delta in event.deltas), event]
            case Accepted():
                check_reads(event)
                self._accepted = event
        return [event]
