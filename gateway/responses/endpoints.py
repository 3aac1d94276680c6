"""The routes: make a response, and look at a stored one, list its input, delete and cancel it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from baton.wire.fields import shown
from gateway.openai.shapes import Order, check_limit, list_json
from gateway.responses.convert import check_included
from gateway.responses.create import accepted, ask, replay, stream, whole
from gateway.responses.items import Item, as_listed
from gateway.responses.schema import ResponsesBody
from gateway.responses.store import Record, ResponseStore
from gateway.serving.bodies import leave_out, read_body
from gateway.serving.errors import invalid, needs_redis, no_such
from gateway.serving.fleet import Fleets
from gateway.serving.slo import promise_headers
from gateway.serving.streaming import EventStream, unless_gone

PREFIX = "/v1/responses"
_ONE = f"{PREFIX}/{{response_id}}"
MAX_PAGE = 100
_OF_STREAMS = frozenset({"stream", "starting_after"})
"""Parameters that ask for another kind of response, which are refused."""


def routes(fleets: Fleets, max_body_bytes: int, store: ResponseStore | None) -> APIRouter:
    """Return the routes, which raise `ApiError`, `BatonError` and `StoreUnavailable`.

    Without a store only what needs no state is served.
    """
    router = APIRouter()

    @router.post(PREFIX)
    async def create(request: Request) -> Response:
        body = await read_body(request, ResponsesBody, max_body_bytes)
        asked = await unless_gone(request, ask(request, body, fleets, store))
        if asked.known is not None:
            if body.stream:
                return EventStream(partial(replay, asked.known), {})
            return JSONResponse(asked.known.response)
        running = await unless_gone(request, accepted(asked))
        if body.stream:
            return EventStream(partial(stream, asked, running), promise_headers(running.accepted))
        response = await unless_gone(request, whole(asked, running))
        return JSONResponse(response, headers=promise_headers(running.accepted))

    @router.get(_ONE)
    async def retrieve(request: Request, response_id: str) -> dict[str, Any]:
        _check_query(request, ("include",))
        return (await _find(fleets, store, response_id))[2].response

    @router.get(f"{_ONE}/input_items")
    async def input_items(
        request: Request, response_id: str, after: str | None = None, limit: int = 20, order: Order = "desc"
    ) -> dict[str, Any]:
        _check_query(request, ("include", "after", "limit", "order"))
        check_limit(limit, MAX_PAGE)
        record = (await _find(fleets, store, response_id))[2]
        items = [*record.earlier, *record.input]
        return _page(items[::-1] if order == "desc" else items, after, limit)

    @router.delete(_ONE)
    async def delete(response_id: str) -> dict[str, Any]:
        kept, tenant, record = await _find(fleets, store, response_id)
        if record.is_running:
            message = f"{shown(response_id)} is still running; cancel it first"
            raise invalid("", message, status=409, code="response_in_progress")
        await kept.drop(tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post(f"{_ONE}/cancel")
    async def cancel(response_id: str) -> dict[str, Any]:
        """Cancel a response that runs, and return it. One that has ended is returned as it is."""
        _, __, record = await _find(fleets, store, response_id)
        if not record.is_running:
            return record.response
        model = await fleets.model(record.response["model"])
        await model.fleet.sdk.cancel(record.request_id)
        return record.response | {"status": "cancelled"}

    return router


async def _find(
    fleets: Fleets, store: ResponseStore | None, response_id: str
) -> tuple[ResponseStore, str, Record]:
    """Return a response of the caller's tenant, and where it is stored. Raises `ApiError`."""
    if store is None:
        raise needs_redis("stored responses")
    tenant = await fleets.tenant()
    record = await store.find(tenant, response_id)
    if record is None:
        raise no_such("response", response_id)
    return store, tenant, record


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


def _page(items: Sequence[Item], after: str | None, limit: int) -> dict[str, Any]:
    """Return so many items after one of them. Raises `ApiError` if it is not among them."""
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise invalid("after", f"after is {shown(after)}; accepted: the id of an input item of this response")
    begin = 0 if after is None else ids.index(after) + 1
    data = [as_listed(item) for item in items[begin : begin + limit]]
    return list_json(data, has_more=begin + len(data) < len(items))
