"""The items of a conversation: messages, reasoning, calls and their results, and the chat that they form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.types.chat import ChatMessage, ToolCall
from baton.wire.fields import shown
from gateway.responses.schema import CallItem, CallOutputItem, MessageItem, ReasoningItem, ReferenceItem
from gateway.serving.bodies import leave_out, read_part, text_of
from gateway.serving.errors import invalid
from gateway.serving.slo import Strict

Item = dict[str, Any]
"""An item as clients see it."""

REFERENCE = "item_reference"
"""The kind of an item that stands for one of a stored response."""
_KINDS: dict[str, tuple[type[Strict], str]] = {
    "message": (MessageItem, "msg"),
    "reasoning": (ReasoningItem, "rs"),
    "function_call": (CallItem, "fc"),
    "function_call_output": (CallOutputItem, "fco"),
    REFERENCE: (ReferenceItem, "ref"),
}
"""The kinds of items, with the prefixes of their ids."""

MAX_ITEMS = 4096
"""The messages that a chat may have. Many more items would hold up streams while they are read."""

_TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The parts of a message, and where their texts are."""


def item_id(kind: str, owner: str, place: int | str) -> str:
    """Return the id of an item: the same one each time the same request is sent."""
    return f"{_KINDS[kind][1]}_{owner}_{place}"


def read_items(given: str | Sequence[Mapping[str, Any]], owner: str) -> list[Item]:
    """Return the items of an input, each with an id. Raises `ApiError` that names the item and its field."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not 0 < len(given) <= MAX_ITEMS:
        raise invalid("input", f"input has {len(given)} items; accepted: a text, or 1 to {MAX_ITEMS} items")
    items: list[Item] = []
    left: set[str] = set()
    for index, item in enumerate(given):
        if not _is_left_out(item, index, left):
            items.append(_read(item, index, owner))
    if not items:
        raise invalid("input", f"input has no item that is served; accepted: {', '.join(_KINDS)}")
    return items


def _is_left_out(given: Mapping[str, Any], index: int, left: set[str]) -> bool:
    """Return whether an item is of a tool that is no function, or of anything else that is not served.

    `left` has the ids of the calls that are left out, whose results are left out as well.
    """
    kind, call_id, where = given.get("type", "message"), given.get("call_id"), f"input[{index}]"
    message = f"{where}.type is {shown(kind)}; accepted: {', '.join(_KINDS)}"
    if not isinstance(kind, str):
        raise invalid(f"{where}.type", message)
    is_result = kind == "function_call_output" and isinstance(call_id, str) and call_id in left
    if kind in _KINDS and not is_result:
        return False
    leave_out(where, message)
    if isinstance(call_id, str):
        left.add(call_id)
    return True


def _read(given: Mapping[str, Any], index: int, owner: str) -> Item:
    kind = given.get("type", "message")
    item = read_part(_KINDS[kind][0], given, "input", index)
    if not _is_finite(given):
        where = f"input[{index}]"
        raise invalid(where, f"{where} has a number that is too large; accepted: numbers of JSON")
    # Nothing is ever encrypted here, so nobody can read it back.
    found = item.model_dump(exclude_none=True, exclude={"encrypted_content"})
    return {"id": item_id(kind, owner, f"i{index}"), **found}


def _is_finite(value: object) -> bool:
    """Return whether a value can be written as JSON: `1e999` is read as infinity."""
    match value:
        case dict():
            return all(map(_is_finite, value.values()))
        case list():
            return all(map(_is_finite, value))
        case float():
            return math.isfinite(value)
    return True


def as_listed(item: Item) -> Item:
    """Return an item as `input_items` shows it: a message has parts, also where a plain text was sent."""
    if item["type"] != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        is_output = item["role"] == "assistant"
        kind = {"type": "output_text", "annotations": []} if is_output else {"type": "input_text"}
        content = [kind | {"text": content}]
    return {"status": "completed", **item, "content": content}


def messages_of(items: Sequence[Item], num_earlier: int, instructions: str | None) -> list[ChatMessage]:
    """Return the chat of a conversation; raises `ApiError`.

    The first `num_earlier` items are those of earlier responses; the others are the input.
    """
    messages = [] if instructions is None else [ChatMessage("system", instructions)]
    turn = _Turn()
    names: dict[str, str] = {}
    for place, item in enumerate(items):
        where = f"input[{place - num_earlier}]"
        match item["type"]:
            case "reasoning":
                messages += turn.reasoned(_reasoning_of(item, where))
            case "function_call":
                names[item["call_id"]] = item["name"]
                turn.calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
            case "function_call_output":
                messages += [*turn.ended(), _result(item, where, names)]
            case _ if item["role"] == "assistant":
                messages += turn.said(text_of(item["content"], f"{where}.content", _TEXTS))
            case _:
                role = "system" if item["role"] == "developer" else item["role"]
                text = text_of(item["content"], f"{where}.content", _TEXTS)
                messages += [*turn.ended(), ChatMessage(role, text)]
    return [*messages, *turn.ended()]


def _result(item: Item, where: str, names: Mapping[str, str]) -> ChatMessage:
    call_id = item["call_id"]
    if call_id not in names:
        param = f"{where}.call_id"
        message = f"{param} is {shown(call_id)}; accepted: the call_id of an earlier function_call"
        raise invalid(param, message)
    text = text_of(item["output"], f"{where}.output", _TEXTS)
    return ChatMessage("tool", text, tool_call_id=call_id, name=names[call_id])


@dataclass(slots=True)
class _Turn:
    """One message of the assistant's, gathered from the items that it became: reasoning, a text, calls."""

    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def reasoned(self, text: str) -> list[ChatMessage]:
        ended = self.ended() if self.text or self.calls else []
        self.reasoning = "\n".join(filter(None, (self.reasoning, text)))
        return ended

    def said(self, text: str) -> list[ChatMessage]:
        ended = self.ended() if self.text or self.calls else []
        self.text = text
        return ended

    def ended(self) -> list[ChatMessage]:
        """Return the message, if there is one, and begin anew."""
        if not (self.reasoning or self.text or self.calls):
            return []
        message = ChatMessage("assistant", self.text, tool_calls=tuple(self.calls), reasoning=self.reasoning)
        self.reasoning, self.text, self.calls = "", "", []
        return [message]


def _reasoning_of(item: Item, where: str) -> str:
    if item.get("content"):
        return text_of(item["content"], f"{where}.content", {"reasoning_text": "text"})
    return text_of(item["summary"], f"{where}.summary", {"summary_text": "text"})
