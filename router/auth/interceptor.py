"""Check the credential of every call before its request is read. Costs nothing per token."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio

from router.api.error_interceptor import abort_with
from router.auth.auth import Auth
from router.auth.principal import set_caller
from router.errors import NotAllowed, Reason, RouterError
from services.rpc.handlers import Context, Continuation, Handler, wrapped_handler

OPEN = "/grpc.health.v1.Health/"
"""Health probes need no credential, and learn only whether the router serves."""
OPERATORS = "/baton.operators.v1.FleetService/"


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Sets the call's `caller`, or refuses the call."""

    def __init__(self, auth: Auth, refused: Callable[[RouterError], None]) -> None:
        self._auth = auth
        self._refused = refused

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        if not method.startswith(OPEN):
            try:
                principal = self._auth.authenticate(handler_call_details.invocation_metadata or ())
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
    """Return a handler of the called method's kind that ends the call with `error`."""

    async def refuse(_request: object, context: Context) -> None:
        await abort_with(context, error)

    if handler is None:
        return None
    return wrapped_handler(handler, lambda _: refuse, parse=bytes)  # the request stays unread
