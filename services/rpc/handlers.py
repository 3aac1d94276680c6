"""Run a check before each call of a gRPC handler, whatever its streaming kind."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_KINDS: dict[tuple[bool, bool], str] = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
"""By whether requests and responses are streams."""


def checked_handler(handler: Handler, check: Callable[[Context], Awaitable[None]]) -> Handler:
    """Return the same handler, which first awaits `check` and goes on if that returns."""
    kind = _KINDS[handler.request_streaming, handler.response_streaming]
    behaviour = getattr(handler, kind)

    async def call(request: object, context: Context) -> object:
        await check(context)
        return await behaviour(request, context)

    async def stream(request: object, context: Context) -> AsyncIterator[object]:
        await check(context)
        async for response in behaviour(request, context):
            yield response

    checked = stream if inspect.isasyncgenfunction(behaviour) else call
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made: Handler = make(checked, handler.request_deserializer, handler.response_serializer)
    return made
