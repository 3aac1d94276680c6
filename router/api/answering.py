"""The edge of every call: it refuses unreadable requests, and turns errors into a status with a reason."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc.aio
import structlog
from google.protobuf.message import Message

from router.api.status import status_of
from router.errors import InternalError, MalformedMessage, RouterError, UnknownMethod
from services.rpc.reading import OUR_PACKAGES, Unreadable, reading

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[[Any, Context], Awaitable[object]]


class Answering(grpc.aio.ServerInterceptor):
    """Lets our methods raise a `RouterError`, and ends the call with it; has to be the first interceptor.

    It calls `refused` with errors that no method has counted.
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
        parse = None if handler is None else handler.request_deserializer
        if handler is None or not method.startswith(OUR_PACKAGES) or handler.request_streaming:
            return handler
        read = None if parse is None else reading(parse)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._ending(handler.unary_stream, method),
                read,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._ending(handler.unary_unary, method),
            read,
            handler.response_serializer,
        )

    def _ending(self, behaviour: Any, method: str) -> Behaviour:
        async def answer(request: object, context: Context) -> object:
            try:
                if isinstance(request, Unreadable):
                    malformed = MalformedMessage(str(request))
                    self._refused(malformed)
                    raise malformed
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
    """Ends calls of methods that no other handler knows; has to be added after all of them."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """The handler of one call."""
        error = UnknownMethod(handler_call_details.method)

        async def refuse(_request: object, context: Context) -> None:
            await end_with(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


def within(request: object, field: str) -> str:
    """Return the prefix that makes `field` a path in `request`: `request.`, or nothing."""
    if not isinstance(request, Message):
        return ""
    fields = request.DESCRIPTOR.fields_by_name
    root = re.split(r"[.\[]", field, maxsplit=1)[0]
    return "request." if root not in fields and "request" in fields else ""


async def end_with(context: Context, error: RouterError, request: object = None) -> NoReturn:
    status = status_of(error, within(request, error.fields[0]) if error.fields else "")
    await context.abort(status.code, status.message, trailing_metadata=status.trailing_metadata)
