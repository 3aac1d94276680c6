"""Refuse requests that cannot be parsed as the caller's mistake; gRPC would report an internal error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from services.rpc.handlers import Context, Handler

OUR_PACKAGES = "/baton."


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


def reading(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that returns `Unreadable` if `parse` raises."""
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
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        parse = None if handler is None else handler.request_deserializer
        if handler is None or parse is None or not handler_call_details.method.startswith(OUR_PACKAGES):
            return handler
        write = handler.response_serializer
        if handler.request_streaming:
            checked_stream = _check_requests(handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(checked_stream, reading(parse), write)
        if handler.response_streaming:
            checked = _check_request(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(checked, reading(parse), write)
        return grpc.unary_unary_rpc_method_handler(_check_request(handler.unary_unary), reading(parse), write)


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
