"""`POST /v1/responses`, beside the routes of responses that are stored."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway.responses.create import accepted, ask, replay, stream, whole
from gateway.responses.schema import ResponsesBody
from gateway.responses.store import ResponseStore
from gateway.responses.stored import stored_routes
from gateway.serving.bodies import read_body
from gateway.serving.fleet import FleetClient
from gateway.serving.slo import promise_headers
from gateway.serving.streaming import EventStream, unless_gone

PREFIX = "/v1/responses"


def routes(fleet: FleetClient, max_body_bytes: int, store: ResponseStore | None) -> APIRouter:
    """Return the routes, which raise `ApiError`, `BatonError` and `StoreUnavailable`.

    Without a store only what needs no state is served.
    """
    router = APIRouter()
    router.include_router(stored_routes(fleet, store), prefix=PREFIX)

    @router.post(PREFIX)
    async def create(request: Request) -> Response:
        body = await read_body(request, ResponsesBody, max_body_bytes)
        asked = await unless_gone(request, ask(request, body, fleet, store))
        if asked.known is not None:
            return (
                EventStream(partial(replay, asked.known), {})
                if body.stream
                else JSONResponse(asked.known.response)
            )
        running = await unless_gone(request, accepted(asked, fleet))
        if body.stream:
            return EventStream(partial(stream, asked, running), promise_headers(running.accepted))
        response = await unless_gone(request, whole(asked, running))
        return JSONResponse(response, headers=promise_headers(running.accepted))

    return router
