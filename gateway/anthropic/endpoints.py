"""The routes of Anthropic's API."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway.anthropic.convert import chat_of, generation_of
from gateway.anthropic.responses import message_events, message_json
from gateway.anthropic.schema import CountBody, MessagesBody
from gateway.serving.bodies import converted, read_body
from gateway.serving.errors import ANTHROPIC_PREFIX
from gateway.serving.fleet import Fleets
from gateway.serving.generations import Running, complete_all
from gateway.serving.slo import promise_headers
from gateway.serving.streaming import EventStream, unless_gone


def routes(fleets: Fleets, max_body_bytes: int) -> APIRouter:
    """Return the routes, which raise `ApiError` and `BatonError`."""
    router = APIRouter()

    @router.post(ANTHROPIC_PREFIX)
    async def messages(request: Request) -> Response:
        body = await read_body(request, MessagesBody, max_body_bytes)
        model = await fleets.model(body.model)
        chat = await converted(request, chat_of, body)
        generation = replace(generation_of(body, chat, request.headers), model=model)
        if not body.stream:
            (completion,) = await unless_gone(request, complete_all(model.fleet, [generation]))
            headers = _with_id({"x-request-id": completion.request_id})
            return JSONResponse(message_json(completion, model.name), headers=headers)
        running = await unless_gone(request, Running.begin(model.fleet, generation))
        headers = _with_id(promise_headers(running.accepted))
        return EventStream(partial(message_events, running, model.name), headers)

    @router.post(f"{ANTHROPIC_PREFIX}/count_tokens")
    async def count(request: Request) -> dict[str, Any]:
        body = await read_body(request, CountBody, max_body_bytes)
        model = await fleets.model(body.model)
        chat = await converted(request, chat_of, body)
        return {"input_tokens": len(await model.fleet.sdk.count_tokens(chat))}

    return router


def _with_id(headers: dict[str, str]) -> dict[str, str]:
    """Return headers with the request's id under Anthropic's name too, which its client reads."""
    return headers | {"request-id": headers["x-request-id"]}
