"""One generation: its message as it comes, and its outcome in words."""

from __future__ import annotations

import json

from baton.types import Finished, FinishReason
from baton.types.deltas import Delta, ReasoningDelta, ToolCallArguments, ToolCallBegun, ToolCallEnded

_DIM, _PLAIN = "\033[2m", "\033[0m"
_LONGEST = 100


class MessageView:
    """Returns the text to print for each delta: content as it is, and each call on a line of its own.

    Reasoning is dimmed, or stands in parentheses unless `styled`.
    """

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

    def _part(self, kind: type[Delta], text: str) -> str:
        if kind is self._shown and kind is not ToolCallBegun:
            return text
        begins = self.end() + ("\n" if self._shown else "")
        self._shown = kind
        return begins + (self._opens if kind is ReasoningDelta else "") + text

    def end(self) -> str:
        """Return what completes the part that was printed last, and with it the message."""
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


def split_line(finished: Finished, reasons: list[FinishReason], resumes: int) -> str:
    """Tokens, times and where they went, on one line."""
    delivery, split = finished.delivery, finished.split
    tpot = "" if delivery.tpot_ms is None else f" · TPOT {delivery.tpot_ms:.1f} ms"
    where = (
        f"queue {split.queue_ms:.0f} + prefill {split.prefill_ms:.0f} + handoff {split.handoff_ms:.0f}"
        f" + decode {split.decode_ms:.0f} + relay {split.relay_ms:.0f} ms"
    )
    parts = [
        f"{finished.usage.output_tokens} tokens ({', '.join(reasons)}) in {delivery.e2e_ms:.0f} ms",
        f"TTFT {delivery.ttft_ms:.0f} ms{tpot}",
        where,
    ]
    if finished.path is not None:
        parts.append(finished.path)
    if finished.usage.cached_prompt_tokens:
        parts.append(f"{finished.usage.cached_prompt_tokens} prompt tokens cached")
    if finished.usage.attempts > 1:
        parts.append(f"{finished.usage.attempts} attempts")
    if resumes:
        parts.append(f"resumed {resumes} ×")
    if broken := broken_promises(finished):
        parts.append(f"promise broken: {broken}")
    return " · ".join(parts)


def broken_promises(finished: Finished) -> str:
    """Which stated promises were not kept; empty when all were, or none was asked for."""
    promise, delivery = finished.promise, finished.delivery
    kept = (
        ("TTFT", promise.ttft_ms, delivery.ttft_kept),
        ("TPOT", promise.tpot_ms, delivery.tpot_kept),
        ("ITL", promise.itl_ms, delivery.itl_kept),
    )
    return " and ".join(name for name, stated, is_kept in kept if stated is not None and not is_kept)
