"""The edge of every call: unreadable requests are refused, and errors become a status with a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc.aio
import structlog
from google.protobuf.message import Message

from router.errors import InternalError, MalformedMessage, RouterError, UnknownMethod
from router.status import status_of

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[[Any, Context], Awaitable[object]]
OURS = "/baton."


class Answering(grpc.aio.ServerInterceptor):
    """Lets methods of ours raise a `RouterError`, and ends the call with it; to come before all others.

    `refused` is told of errors that no method has counted.
    """

    def __init__(self, refused: Callable[[RouterError], None]) -> None:
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or not method.startswith(OURS) or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._ending(handler.unary_stream, method),
                _reading(handler.request_deserializer),
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._ending(handler.unary_unary, method),
            _reading(handler.request_deserializer),
            handler.response_serializer,
        )

    def _ending(self, behaviour: Any, method: str) -> Behaviour:
        async def answer(request: object, context: Context) -> object:
            try:
                if isinstance(request, _Unreadable):
                    self._refused(request.error)
                    raise request.error
                return await behaviour(request, context)
            except grpc.aio.BaseError:
                raise  # the call has ended already
            except RouterError as error:
                await end_with(context, error, request)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the caller is told
                structlog.get_logger().exception("call_failed", method=method)
                internal = InternalError(error)
                self._refused(internal)
                await end_with(context, internal, request)

        return answer


class UnknownMethods(grpc.GenericRpcHandler):
    """Answers calls of methods that no other handler knows; to be added after all of them."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """The handler of one call."""
        error = UnknownMethod(handler_call_details.method)

        async def refuse(_request: object, context: Context) -> None:
            await end_with(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


@dataclasses.dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a request that could not be parsed. An exception of a deserializer gRPC answers itself."""

    error: MalformedMessage


def _reading(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if parse is None:
        return None
    name = getattr(getattr(parse, "__self__", None), "__name__", "message of this method")

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except Exception as error:  # noqa: BLE001 -- whatever protobuf's parsers raise, the bytes are wrong
            return _Unreadable(MalformedMessage(name, str(error)))

    return read


def within(request: object, field: str) -> str:
    """What leads from `request` to the message that `field` is a path in: `request.`, or nothing."""
    if not isinstance(request, Message):
        return ""
    fields = request.DESCRIPTOR.fields_by_name
    root = re.split(r"[.\[]", field, maxsplit=1)[0]
    return "request." if root not in fields and "request" in fields else ""


async def end_with(context: Context, error: RouterError, request: object = None) -> NoReturn:
    status = status_of(error, within(request, error.fields[0]) if error.fields else "")
    await context.abort(status.code, status.message, trailing_metadata=status.trailing_metadata)
