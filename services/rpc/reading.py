"""Requests that cannot be parsed are the caller's mistake; gRPC would take them for a bug of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
OURS = "/baton."


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request that could not be parsed: gRPC itself ends the call if a deserializer raises."""

    message: str
    """The type it should have been."""
    why: str

    def __str__(self) -> str:
        return (
            f"the bytes sent are no {self.message}: {self.why}; accepted: protobuf, with every string in "
            "valid UTF-8"
        )


def reading(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that returns `Unreadable` where `parse` raises."""
    name = getattr(getattr(parse, "__self__", None), "__name__", "message of this method")

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except Exception as error:  # noqa: BLE001 -- whatever protobuf's parsers raise, the bytes are wrong
            return Unreadable(name, str(error))

    return read


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """Ends calls of ours with INVALID_ARGUMENT where a request cannot be parsed; methods are coroutines."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        parse = None if handler is None else handler.request_deserializer
        if handler is None or parse is None or not handler_call_details.method.startswith(OURS):
            return handler
        write = handler.response_serializer
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_each(handler.stream_stream), reading(parse), write)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_one(handler.unary_stream), reading(parse), write)
        return grpc.unary_unary_rpc_method_handler(_one(handler.unary_unary), reading(parse), write)


def _one(behaviour: Any) -> Any:
    async def answer(request: object, context: Context) -> object:
        await _check(request, context)
        return await behaviour(request, context)

    return answer


def _each(behaviour: Any) -> Any:
    async def answer(requests: AsyncIterator[object], context: Context) -> object:
        async def checked() -> AsyncIterator[object]:
            async for request in requests:
                await _check(request, context)
                yield request

        return await behaviour(checked(), context)

    return answer


async def _check(request: object, context: Context) -> None:
    if isinstance(request, Unreadable):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request))
