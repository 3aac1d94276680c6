"""A message as it comes: reasoning dimmed, content as it is, and each call on a line of its own."""

from __future__ import annotations

import json

from baton.types.deltas import Delta, ReasoningDelta, ToolCallArguments, ToolCallBegun, ToolCallEnded

_DIM, _PLAIN = "\033[2m", "\033[0m"
_LONGEST = 100


class MessageView:
    """Returns the text to print for each delta. Unless `styled`, reasoning stands in parentheses."""

    def __init__(self, *, styled: bool) -> None:
        self._opens, self._closes = (_DIM, _PLAIN) if styled else ("(", ")")
        self._shown: type[Delta] | None = None
        """The kind of part that was printed last."""
        self._arguments = ""

    def more(self, delta: Delta) -> str:
        """Return the text of one more delta."""
        if isinstance(delta, ToolCallArguments):
            self._arguments += delta.text
            return delta.text
        if isinstance(delta, ToolCallEnded):
            return ""
        if isinstance(delta, ToolCallBegun):
            begun = self._part(ToolCallBegun, f"→ {delta.name}(")
            self._arguments = ""
            return begun
        return self._part(type(delta), delta.text)

    def end(self) -> str:
        """Return what completes the message."""
        return self._end_of_part()

    def _part(self, kind: type[Delta], text: str) -> str:
        if kind is self._shown and kind is not ToolCallBegun:
            return text
        begins = self._end_of_part() + ("\n" if self._shown else "")
        self._shown = kind
        return begins + (self._opens if kind is ReasoningDelta else "") + text

    def _end_of_part(self) -> str:
        if self._shown is ReasoningDelta:
            return self._closes
        if self._shown is ToolCallBegun:
            return ")" if is_whole(self._arguments) else " … cut off)"
        return ""


def is_whole(arguments: str) -> bool:
    """Return whether a call's arguments were written to their end."""
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def shortened(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
