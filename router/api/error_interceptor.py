"""Refuse unreadable requests, and end calls that raise with the error's status."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc.aio
import structlog
from google.protobuf.message import Message

from router.api.status import status_of
from router.errors import InternalError, MalformedMessage, RouterError, UnknownMethod
from runtime.rpc.handlers import (
    OUR_PACKAGES,
    Context,
    Continuation,
    Handler,
    Unreadable,
    reading,
    wrapped_handler,
)

Behaviour = Callable[[Any, Context], Awaitable[object]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call with the `RouterError` that its method raises. It must be the first interceptor.

    A method that streams requests looks for `Unreadable` ones itself.
    Calls `refused` with errors that no method has counted.
    """

    def __init__(self, refused: Callable[[RouterError], None]) -> None:
        self._refused = refused

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or not method.startswith(OUR_PACKAGES):
            return handler
        wrap = functools.partial(self._catch_errors, method)
        return wrapped_handler(handler, wrap, reading(handler.request_deserializer))

    def _catch_errors(self, method: str, behaviour: Any) -> Behaviour:
        async def call(request: object, context: Context) -> object:
            try:
                if isinstance(request, Unreadable):
                    malformed = MalformedMessage(str(request))
                    self._refused(malformed)
                    raise malformed
                return await behaviour(request, context)
            except grpc.aio.BaseError:
                raise  # the call has ended already
            except RouterError as error:
                await abort_with(context, error, request)
            except Exception as error:  # noqa: BLE001 -- the caller learns of every failure
                structlog.get_logger().exception("call_failed", method=method, user=_user_of(request))
                internal = InternalError(error)
                self._refused(internal)
                await abort_with(context, internal, request)

        return call


class UnknownMethods(grpc.GenericRpcHandler):
    """Ends calls of unknown methods. It must be added after all other handlers."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that refuses the call."""
        error = UnknownMethod(handler_call_details.method)

        async def refuse(_request: object, context: Context) -> None:
            await abort_with(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _user_of(request: object) -> str:
    """Return the end user that a request names; empty if it names none."""
    return str(getattr(getattr(request, "request", request), "user", ""))


def path_prefix(request: object, error: RouterError) -> str:
    """Return the prefix that makes an error's fields paths in `request`: `request.`, or nothing."""
    if not isinstance(request, Message) or not error.fields:
        return ""
    fields = request.DESCRIPTOR.fields_by_name
    root = re.split(r"[.\[]", error.fields[0], maxsplit=1)[0]
    return "request." if root not in fields and "request" in fields else ""


async def abort_with(context: Context, error: RouterError, request: object = None) -> NoReturn:
    """End the call with the status of an error."""
    status = status_of(error, path_prefix(request, error))
    await context.abort(status.code, status.details, trailing_metadata=status.trailing_metadata)
