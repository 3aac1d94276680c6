"""Asks every call for its credential before anything of it is read; costs nothing per token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

from router.api.answering import end_with
from router.auth.auth import Door
from router.auth.principal import set_caller
from router.errors import NotAllowed, Reason, RouterError

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
OPEN = "/grpc.health.v1.Health/"
"""Probes have no credential, and hear no more than whether the router serves."""
OPERATORS = "/baton.operators.v1.FleetService/"


class DoorInterceptor(grpc.aio.ServerInterceptor):
    """Sets the call's `caller`, or answers in the method's place."""

    def __init__(self, door: Door, refused: Callable[[RouterError], None]) -> None:
        self._door = door
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        if not method.startswith(OPEN):
            try:
                principal = self._door.authenticate(handler_call_details.invocation_metadata or ())
                if method.startswith(OPERATORS) and not principal.operator:
                    raise NotAllowed(
                        Reason.OPERATORS_ONLY, "watching and draining the fleet is for operators"
                    )
            except RouterError as error:
                self._refused(error)
                return _refusing(error, await continuation(handler_call_details))
            set_caller(principal)
        return await continuation(handler_call_details)


def _refusing(error: RouterError, handler: Handler | None) -> Handler | None:
    """In the shape of the method that was called."""

    async def refuse(_request: object, context: Context) -> None:
        await end_with(context, error)

    if handler is None:
        return None
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
