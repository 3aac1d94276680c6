"""The routes of responses that are stored: look at one, list its input, delete and cancel it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from baton.wire.fields import shown
from gateway.responses.convert import check_included
from gateway.responses.items import as_listed
from gateway.responses.store import Record, ResponseStore
from gateway.serving.bodies import leave_out
from gateway.serving.errors import ApiError, Problem, invalid, needs_redis, no_such
from gateway.serving.fleet import FleetClient

_ONE = "/{response_id}"
MAX_PAGE = 100
_OF_STREAMS = frozenset({"stream", "starting_after"})
"""Parameters that ask for another kind of response, which are refused."""


def stored_routes(fleet: FleetClient, store: ResponseStore | None) -> APIRouter:
    """Return the routes below `/v1/responses`."""
    router = APIRouter()

    @router.get(_ONE)
    async def retrieve(request: Request, response_id: str) -> dict[str, Any]:
        _check_query(request, ("include",))
        return (await _find(response_id))[2].response

    @router.get(f"{_ONE}/input_items")
    async def input_items(request: Request, response_id: str) -> dict[str, Any]:
        _check_query(request, ("include", "after", "limit", "order"))
        record = (await _find(response_id))[2]
        return _page(record, request)

    @router.delete(_ONE)
    async def delete(response_id: str) -> dict[str, Any]:
        kept, tenant, record = await _find(response_id)
        if record.is_running:
            message = f"{shown(response_id)} is still running; cancel it first"
            raise ApiError(Problem(409, "invalid_request_error", message, code="response_in_progress"))
        await kept.drop(tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post(f"{_ONE}/cancel")
    async def cancel(response_id: str) -> dict[str, Any]:
        """Cancel a response that runs, and return it. One that has ended is returned as it is."""
        _, __, record = await _find(response_id)
        if not record.is_running:
            return record.response
        await fleet.sdk.cancel(record.request_id)
        return record.response | {"status": "cancelled"}

    async def _find(response_id: str) -> tuple[ResponseStore, str, Record]:
        if store is None:
            raise needs_redis("stored responses")
        tenant = await fleet.tenant()
        record = await store.find(tenant, response_id)
        if record is None:
            raise no_such("response", response_id)
        return store, tenant, record

    return router


def _check_query(request: Request, accepted_names: tuple[str, ...]) -> None:
    for name in request.query_params:
        bare = name.removesuffix("[]")
        message = f"{bare} is set; accepted: {', '.join(accepted_names)}"
        if bare in _OF_STREAMS:
            raise invalid(bare, message)
        if bare not in accepted_names:
            leave_out(bare, message, code="unknown_field")
    for name in ("include", "include[]"):
        check_included(request.query_params.getlist(name))


def _page(record: Record, request: Request) -> dict[str, Any]:
    """Return the input items that the query asks for, newest first unless it says otherwise."""
    query = request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in {"asc", "desc"}:
        raise invalid("order", f"order is {shown(order)}; accepted: 'asc' or 'desc'")
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= MAX_PAGE:
        raise invalid("limit", f"limit is {shown(limit)}; accepted: 1 to {MAX_PAGE}")
    items = [*record.earlier, *record.input]
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise invalid("after", f"after is {shown(after)}; accepted: the id of an input item of this response")
    begin = 0 if after is None else ids.index(after) + 1
    data = [as_listed(item) for item in items[begin : begin + int(limit)]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": begin + len(data) < len(items),
    }
