"""Wrap gRPC handlers, whatever their streaming kind."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

Continuation: TypeAlias = (
    "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]"
)
"""Gives an interceptor the handler of a call; None if there is no such method."""


def wrapped_handler(
    handler: Handler, wrap: Callable[[Any], Any], parse: Callable[[bytes], Any] | None = None
) -> Handler:
    """Return the same handler with its behaviour wrapped, which parses requests by `parse` if given."""
    kind = "_".join(
        "stream" if streams else "unary"
        for streams in (handler.request_streaming, handler.response_streaming)
    )
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapped: Handler = make(
        wrap(getattr(handler, kind)), parse or handler.request_deserializer, handler.response_serializer
    )
    return wrapped


def checked_handler(handler: Handler, check: Callable[[Context], Awaitable[None]]) -> Handler:
    """Return the same handler, which first awaits `check` and goes on if that returns."""

    def wrap(behaviour: Any) -> Any:
        async def call(request: object, context: Context) -> object:
            await check(context)
            return await behaviour(request, context)

        async def stream(request: object, context: Context) -> AsyncIterator[object]:
            await check(context)
            async for response in behaviour(request, context):
                yield response

        return stream if inspect.isasyncgenfunction(behaviour) else call

    return wrapped_handler(handler, wrap)
