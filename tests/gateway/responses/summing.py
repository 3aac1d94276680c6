"""A reader of events that takes nothing on trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


def summed(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that the events add up to; fails if an event is not where it may be."""
    waiting = list(events)

    def take(kind: str) -> dict[str, Any]:
        event = waiting.pop(0)
        assert event["type"] == f"response.{kind}", (event["type"], kind)
        return event

    for kind in ("created", "in_progress"):
        response = take(kind)["response"]
        assert (response["status"], response["output"]) == ("in_progress", [])
    items: list[dict[str, Any]] = []
    while waiting[0]["type"] == "response.output_item.added":
        items.append(_item(take, waiting, len(items)))
    last = waiting.pop()
    assert not waiting
    assert last["type"] in {"response.completed", "response.incomplete", "response.failed"}
    assert last["response"]["output"] == items
    assert len({item["id"] for item in items}) == len(items)
    return items


def _item(take: Any, waiting: list[dict[str, Any]], index: int) -> dict[str, Any]:
    added = take("output_item.added")
    item = added["item"]
    assert added["output_index"] == index
    assert item["status"] == "in_progress"
    place = {"item_id": item["id"], "output_index": index}

    def taken(kind: str) -> dict[str, Any]:
        event = take(kind)
        assert event.items() >= place.items()
        return event

    def joined(name: str) -> str:
        text = ""
        while waiting[0]["type"] == f"response.{name}.delta":
            text += taken(f"{name}.delta")["delta"]
        return text

    if item["type"] == "function_call":
        text = joined("function_call_arguments")
        assert taken("function_call_arguments.done")["arguments"] == text
        whole = item | {"arguments": text}
    else:
        name = TEXTS[item["type"]]
        part = taken("content_part.added")["part"]
        assert part["text"] == ""
        text = joined(name)
        assert taken(f"{name}.done")["text"] == text
        assert taken("content_part.done")["part"] == part | {"text": text}
        whole = item | {"content": [part | {"text": text}]}
    done = take("output_item.done")
    assert done["output_index"] == index
    assert done["item"] == whole | {"status": done["item"]["status"]}
    return done["item"]
