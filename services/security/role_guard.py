"""Who may call which service of a worker: decided by the certificate of the connection, once per call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc.aio

from services.security.tls import Role, roles_of

FLEET = frozenset({Role.ROUTER, Role.WORKER})
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_KINDS: dict[tuple[bool, bool], str] = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
"""By whether requests and responses are streams."""


class RoleGuard(grpc.aio.ServerInterceptor):
    """`allowed` maps a service's full name to the roles that may call it; to all others the fleet's may."""

    def __init__(self, allowed: Mapping[str, frozenset[Role]]) -> None:
        self._allowed = allowed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.split("/")[1]
        return None if handler is None else _guarded(handler, self._allowed.get(service, FLEET), service)


def _guarded(handler: Handler, roles: frozenset[Role], service: str) -> Handler:
    async def check(context: Context) -> None:
        found = roles_of(context.auth_context())
        if not found & roles:
            wanted = " or ".join(sorted(role.value for role in roles))
            has = ", ".join(sorted(role.value for role in found)) or "no role of this fleet"
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{service} is for a {wanted}; this connection's certificate names {has}",
            )

    return rewrapped(handler, check)


def rewrapped(handler: Handler, check: Callable[[Context], Awaitable[None]]) -> Handler:
    """The same handler, which first awaits `check` and goes on if that returns."""
    kind = _KINDS[handler.request_streaming, handler.response_streaming]
    behaviour = getattr(handler, kind)

    async def answer(request: object, context: Context) -> object:
        await check(context)
        return await behaviour(request, context)

    async def stream(request: object, context: Context) -> AsyncIterator[object]:
        await check(context)
        async for response in behaviour(request, context):
            yield response

    wrapped = stream if inspect.isasyncgenfunction(behaviour) else answer
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made: Handler = make(wrapped, handler.request_deserializer, handler.response_serializer)
    return made
