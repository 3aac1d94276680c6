"""Wrap gRPC handlers, whatever their streaming kind.

One wrapper is for every server: a request that cannot be parsed is refused as the caller's mistake
(`RefuseUnreadable`), where gRPC would report an internal error.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

OUR_PACKAGES = ("/baton.", "/externalscaler.")

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


# Requests that cannot be parsed


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request that could not be parsed: gRPC itself ends the call if a deserializer raises."""

    message: str
    """The name of the expected type."""
    why: str

    def __str__(self) -> str:
        return (
            f"the bytes sent are not a {self.message}: {self.why}; accepted: protobuf, with every string in "
            "valid UTF-8"
        )


def reading(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Return a deserializer that returns `Unreadable` if `parse` raises; None for a method without one."""
    if parse is None:
        return None
    name = getattr(getattr(parse, "__self__", None), "__name__", "message of this method")

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except Exception as error:  # noqa: BLE001 -- whatever protobuf's parsers raise, the bytes are wrong
            return Unreadable(name, str(error))

    return read


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """Ends calls of our services with INVALID_ARGUMENT if a request cannot be parsed.

    All methods must be coroutines.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OUR_PACKAGES):
            return handler
        wrap = _check_requests if handler.request_streaming else _check_request
        return wrapped_handler(handler, wrap, reading(handler.request_deserializer))


def _check_request(behaviour: Any) -> Any:
    async def call(request: object, context: Context) -> object:
        await _check(request, context)
        return await behaviour(request, context)

    return call


def _check_requests(behaviour: Any) -> Any:
    async def call(requests: AsyncIterator[object], context: Context) -> object:
        async def checked() -> AsyncIterator[object]:
            async for request in requests:
                await _check(request, context)
                yield request

        return await behaviour(checked(), context)

    return call


async def _check(request: object, context: Context) -> None:
    if isinstance(request, Unreadable):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request))
