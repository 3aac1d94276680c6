"""Items that stand for items of stored responses, which clients send instead of the whole history."""

from __future__ import annotations

from collections.abc import Sequence

from baton.wire.fields import shown
from gateway.responses.items import REFERENCE, Item
from gateway.responses.store import ResponseStore
from gateway.serving.errors import invalid, no_such

MAX_READ = 8
"""Responses that one request may have read. The newest one usually has all items of those before it."""


def has_references(items: Sequence[Item]) -> bool:
    return any(item["type"] == REFERENCE for item in items)


async def resolved(items: Sequence[Item], tenant: str, store: ResponseStore) -> list[Item]:
    """Return the items with those in place of which references stand.

    Raises `ApiError` that names the reference, and `StoreUnavailable`. Each item may be referred to once, so
    a small body asks for no more text than is stored.
    """
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        if item["type"] != REFERENCE:
            continue
        where = f"input[{index}].id"
        if item["id"] in places:
            earlier = places[item["id"]]
            raise invalid(where, f"{where} is {shown(item['id'])}, as {earlier} is; accepted: each id once")
        places[item["id"]] = where
    known: dict[str, Item] = {}
    num_read = 0
    for name, where in reversed(places.items()):
        if name in known:
            continue
        if num_read == MAX_READ:
            message = f"input refers to items of more than {MAX_READ} responses; accepted: up to {MAX_READ}"
            raise invalid("input", message)
        num_read += 1
        record = await store.find(tenant, _response_of(name))
        known |= {item["id"]: item for item in (record.conversation if record else ())}
        if name not in known:
            raise no_such("item", name, where)
    return [known[item["id"]] if item["type"] == REFERENCE else item for item in items]


def _response_of(name: str) -> str:
    """Return the id of the response that has an item, as `item_id` and `ask` write both."""
    return f"resp_{name.partition('_')[2].rpartition('_')[0]}"
