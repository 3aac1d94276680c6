"""A message as it comes: reasoning dimmed, content as it is, and each call on a line of its own."""

from __future__ import annotations

from chat_formats import Delta, ReasoningDelta, ToolCallArguments, ToolCallBegun

_DIM, _PLAIN = "\033[2m", "\033[0m"


class MessageView:
    """Returns the text to print for each delta. Unless `styled`, reasoning stands in parentheses."""

    def __init__(self, *, styled: bool) -> None:
        self._opens, closes = (_DIM, _PLAIN) if styled else ("(", ")")
        self._ends = {ReasoningDelta: closes, ToolCallBegun: ")"}
        self._shown: type[Delta] | None = None
        """The kind of part that was printed last."""

    def more(self, delta: Delta) -> str:
        """Return the text of one more delta."""
        if isinstance(delta, ToolCallArguments):
            return delta.text
        begins = ""
        if type(delta) is not self._shown or isinstance(delta, ToolCallBegun):
            begins = self.end() + ("\n" if self._shown else "")
            self._shown = type(delta)
            if isinstance(delta, ReasoningDelta):
                begins += self._opens
        return begins + (f"→ {delta.name}(" if isinstance(delta, ToolCallBegun) else delta.text)

    def end(self) -> str:
        """Return what completes the part that was printed last."""
        return "" if self._shown is None else self._ends.get(self._shown, "")
