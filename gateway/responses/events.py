"""The output of one response as items and typed events.

    response.output_item.added
      response.content_part.added           of a message, or of reasoning
        response.output_text.delta …        or reasoning_text; of a call, function_call_arguments
        response.output_text.done
      response.content_part.done
    response.output_item.done

An item ends where the next one begins. All that was added is done at the end, and the items are the sums of
their deltas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from gateway.responses.items import Item, item_id
from gateway.serving.slo import arguments_of

Event = dict[str, Any]
"""An event without its number."""

_KINDS: dict[type, str] = {
    ContentDelta: "message",
    ReasoningDelta: "reasoning",
    ToolCallArguments: "function_call",
}
"""The item that a delta adds text to."""
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The kind of part that an item consists of."""
_BARE: dict[str, Item] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": [], "content": []},
}
_LOGPROBS: dict[str, Any] = {"logprobs": []}
"""Clients expect them beside the text of a message."""


@dataclass(slots=True)
class Output:
    """Gathers deltas into items, whose ids contain `owner`."""

    owner: str
    items: list[Item] = field(default_factory=list)
    """All items; the last one may still be open."""
    _pieces: list[str] = field(default_factory=list)
    """The texts of the item that is open."""
    _is_open: bool = False

    @property
    def is_reasoning(self) -> bool:
        """Whether reasoning is the open item."""
        return self._is_open and self.items[-1]["type"] == "reasoning"

    def of(self, delta: Delta) -> list[Event]:
        """Return the events of one delta."""
        match delta:
            case ToolCallBegun():
                call = {"call_id": delta.id, "name": delta.name, "arguments": ""}
                return [*self.end(), self._begin("function_call", call)]
            case ToolCallEnded():
                return []
        begun = [] if self.goes_on(delta) else self._begin_text(_KINDS[type(delta)])
        self.add(delta)
        return [*begun, self.added(delta)]

    def goes_on(self, delta: Delta) -> bool:
        """Return whether a delta only adds text to the item that is open."""
        return self._is_open and self.items[-1]["type"] == _KINDS.get(type(delta))

    def add(self, delta: TextDelta) -> None:
        self._pieces.append(delta.text)

    def added(self, delta: TextDelta) -> Event:
        """Return the event of text that the open item goes on with."""
        if isinstance(delta, ToolCallArguments):
            return self._event("function_call_arguments.delta", delta=delta.text)
        kind = _KINDS[type(delta)]
        more = _LOGPROBS if kind == "message" else {}
        return self._event(f"{_PARTS[kind]}.delta", content_index=0, delta=delta.text, **more)

    def end(self, status: str = "completed") -> list[Event]:
        """Return the events that end the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item, text = self.items[-1], "".join(self._pieces)
        self._pieces.clear()
        item["status"] = status
        if item["type"] == "function_call":
            item["status"] = "incomplete" if arguments_of(text) is None else "completed"
            item["arguments"] = text
            events = [self._event("function_call_arguments.done", name=item["name"], arguments=text)]
        else:
            part = _part(item["type"], text)
            item["content"] = [part]
            more = _LOGPROBS if item["type"] == "message" else {}
            events = [
                self._event(f"{part['type']}.done", content_index=0, text=text, **more),
                self._event("content_part.done", content_index=0, part=part),
            ]
        return [*events, self._item_event("done")]

    def _begin_text(self, kind: str) -> list[Event]:
        return [
            *self.end(),
            self._begin(kind, _BARE[kind]),
            self._event("content_part.added", content_index=0, part=_part(kind, "")),
        ]

    def _begin(self, kind: str, content: Item) -> Event:
        self._is_open = True
        head = {"id": item_id(kind, self.owner, len(self.items)), "type": kind, "status": "in_progress"}
        self.items.append(head | content)
        return self._item_event("added")

    def _item_event(self, what: str) -> Event:
        # A copy: the item itself goes on to change.
        return {
            "type": f"response.output_item.{what}",
            "output_index": len(self.items) - 1,
            "item": dict(self.items[-1]),
        }

    def _event(self, what: str, /, **fields: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{what}"} | place | fields


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def deltas_in(items: Sequence[Item]) -> list[Delta]:
    """Return deltas that become these items."""
    deltas: list[Delta] = []
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                deltas.append(ContentDelta(item["content"][0]["text"]))
            case "reasoning":
                deltas.append(ReasoningDelta(item["content"][0]["text"]))
            case _:
                deltas += [
                    ToolCallBegun(index, item["name"], item["call_id"]),
                    ToolCallArguments(index, item["arguments"]),
                ]
    return deltas
