"""The application: the routes of every API, whose errors it puts into that API's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from baton.errors import BatonError, NotAllowed, Unavailable
from baton.wire.fields import shown
from gateway.anthropic import convert as anthropic_names
from gateway.anthropic import endpoints as anthropic
from gateway.batches import endpoints as batches
from gateway.openai import convert as openai_names
from gateway.openai import endpoints as openai
from gateway.page import endpoints as page
from gateway.page.about import about
from gateway.responses import convert as responses_names
from gateway.responses import endpoints as responses
from gateway.responses.store import ResponseLimits, ResponseStore
from gateway.serving.bodies import accepted_by
from gateway.serving.errors import (
    ANTHROPIC_PREFIX,
    ApiError,
    Problem,
    error_json,
    invalid,
    problem_of,
    unavailable,
)
from gateway.serving.fleet import ASK_S, FleetClient, Fleets
from gateway.serving.request_log import CLIENT_CLOSED_REQUEST, problem_to_tell
from runtime.state.durable import DurableRedis
from runtime.state.errors import StoreUnavailable
from runtime.version import VERSION

HEALTH_CONNECT_S = 1.0
"""Probes wait no longer for a router to be reached."""


def make_app(
    fleets: Fleets,
    max_body_bytes: int,
    redis: DurableRedis | None,
    batch_api: batches.BatchApi | None,
    limits: ResponseLimits,
    *,
    has_page: bool,
) -> FastAPI:
    """Return the application, which refuses what Redis would keep without it. The caller closes `fleets`.

    `has_page`: people with a browser may try the fleets, and look at them.
    """
    handlers: dict[Any, Any] = {
        ApiError: _on_error,
        BatonError: _on_error,
        StoreUnavailable: _on_store_error,
        HTTPException: _on_http_error,
        RequestValidationError: _on_wrong_parameter,
        ClientDisconnect: _on_disconnect,
        Exception: _on_bug,
    }
    app = FastAPI(title="Baton", openapi_url=None, exception_handlers=handlers)
    for api in (openai, anthropic):
        app.include_router(api.routes(fleets, max_body_bytes))
    app.include_router(batches.routes(fleets, max_body_bytes, batch_api))
    store = None if redis is None else ResponseStore(redis, limits)
    app.include_router(responses.routes(fleets, max_body_bytes, store))

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, Any]:
        """Return a model if any router serves, unless callers must show a key; 503 if none does."""
        try:
            return await fleets.first(_health_of)
        except Unavailable as error:
            structlog.get_logger().warning("no_router_serves", reason=str(error))
            raise unavailable(f"no router of the fleet serves: {error}") from error

    @app.api_route("/version", methods=["GET", "HEAD"])
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    if has_page:
        app.include_router(page.routes(fleets))
    else:
        _add_about(app, fleets)

    return app


async def _health_of(fleet: FleetClient) -> dict[str, Any]:
    try:
        return {"status": "ok", "model": (await fleet.sdk.models(connect_s=HEALTH_CONNECT_S))[0].name}
    except NotAllowed:  # a router serves; probes have no key
        return {"status": "ok"}


def _add_about(app: FastAPI, fleets: Fleets) -> None:
    @app.api_route("/", methods=["GET", "HEAD"])
    async def about_fleet() -> Response:
        """Return a page for people, without the models where their names need a key."""
        try:
            served = await fleets.told_models(ASK_S)
        except NotAllowed:
            return about(VERSION, (), "Its calls need a key.")
        except BatonError:
            return about(VERSION, (), "No router of it responds.")
        return about(VERSION, served, "")


def _respond(path: str, problem: Problem) -> Response:
    return JSONResponse(error_json(path, problem), problem.status, problem.headers())


async def _on_error(request: Request, error: ApiError | BatonError) -> Response:
    param_of = getattr(request.state, "param_of", _param_of(request.url.path))
    return _respond(request.url.path, problem_to_tell(error, param_of))


def respond_to(path: str, error: ApiError | BatonError) -> Response:
    """Return the response to an error that is found before the application sees the request."""
    return _respond(path, problem_of(error, _param_of(path)))


def _param_of(path: str) -> Callable[[str], str]:
    if path.startswith(ANTHROPIC_PREFIX):
        return anthropic_names.param_of
    return responses_names.param_of if path.startswith(responses.PREFIX) else openai_names.param_of


async def _on_store_error(request: Request, error: StoreUnavailable) -> Response:
    message = f"Redis, which keeps files, batches and stored responses, does not respond: {error.reason}"
    return _respond(request.url.path, unavailable(message, code="redis_away").problem)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    return _respond(request.url.path, Problem(error.status_code, kind, message))


async def _on_wrong_parameter(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    name = str(first["loc"][-1])
    message = f"{name} is {shown(first['input'])}; accepted: {accepted_by(first)}"
    return await _on_error(request, invalid(name, message))


async def _on_disconnect(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_bug(request: Request, error: Exception) -> Response:
    structlog.get_logger().error("request_failed", path=request.url.path, exc_info=error)
    message = "the gateway failed unexpectedly; its log has the reason"
    return _respond(request.url.path, Problem(500, "api_error", message, code="internal_error"))
