"""Check the credential of every call before its request is read. Costs nothing per token."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio

from router.api.error_interceptor import abort_with
from router.auth.auth import Auth
from router.auth.principal import set_caller
from router.errors import NotAllowed, Reason, RouterError, Unauthenticated
from runtime.rpc.handlers import Context, Continuation, Handler, checked_handler, wrapped_handler
from runtime.security.tls import CertificateRole, roles_of

OPEN = "/grpc.health.v1.Health/"
"""Health probes need no credential, and learn only whether the router serves."""
OPERATORS = ("/baton.operators.v1.FleetService/", "/externalscaler.ExternalScaler/")
"""Calls for an operator: by its key or token, or by its certificate alone, since KEDA sends no other."""

MANY = "/baton.v1.InferenceService/GenerateMany"
"""Each generation on such a call may have a credential of its own, which is checked when it begins."""


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Sets the call's `caller`, or refuses the call."""

    def __init__(self, auth: Auth, refused: Callable[[RouterError], None]) -> None:
        self._auth = auth
        self._refused = refused

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata or ()
        handler = await continuation(handler_call_details)
        has_credential = any(name == "authorization" for name, _ in metadata)
        if handler is None or method.startswith(OPEN) or (method == MANY and not has_credential):
            return handler
        if method.startswith(OPERATORS) and not has_credential:
            return checked_handler(handler, self._check_certificate)
        try:
            principal = self._auth.authenticate(metadata)
            if method.startswith(OPERATORS) and not principal.operator:
                raise NotAllowed(
                    Reason.OPERATORS_ONLY, "watching, draining and scaling the fleet is for operators"
                )
        except RouterError as error:
            self._refused(error)
            return _refusing(error, handler)
        set_caller(principal)
        return handler

    async def _check_certificate(self, context: Context) -> None:
        if CertificateRole.OPERATOR in roles_of(context.auth_context()):
            return
        error = Unauthenticated(
            Reason.CREDENTIAL_MISSING,
            "the call has no credential; accepted: one authorization: Bearer KEY-OR-TOKEN of an operator, or "
            "a connection with an operator's certificate",
        )
        self._refused(error)
        await abort_with(context, error)


def _refusing(error: RouterError, handler: Handler) -> Handler:
    """Return a handler of the called method's kind that ends the call with `error`."""

    async def refuse(_request: object, context: Context) -> None:
        await abort_with(context, error)

    return wrapped_handler(handler, lambda _: refuse, parse=bytes)  # the request stays unread
