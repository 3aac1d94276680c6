"""Decide by a connection's certificate which service of a worker it may call, once per call."""

from __future__ import annotations

from collections.abc import Mapping

import grpc.aio

from runtime.rpc.handlers import Context, Continuation, Handler, checked_handler
from runtime.security.tls import CertificateRole, roles_of

FLEET = frozenset({CertificateRole.ROUTER, CertificateRole.WORKER})


class RoleGuard(grpc.aio.ServerInterceptor):
    """Refuses callers whose role may not call a service.

    `allowed` maps a service's full name to the roles that may call it; to all others it is `FLEET`.
    """

    def __init__(self, allowed: Mapping[str, frozenset[CertificateRole]]) -> None:
        self._allowed = allowed

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.split("/")[1]
        return None if handler is None else _guarded(handler, self._allowed.get(service, FLEET), service)


def _guarded(handler: Handler, roles: frozenset[CertificateRole], service: str) -> Handler:
    async def check(context: Context) -> None:
        caller_roles = roles_of(context.auth_context())
        if not caller_roles & roles:
            accepted = " or ".join(sorted(role.value for role in roles))
            names = ", ".join(sorted(role.value for role in caller_roles)) or "no role of this fleet"
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{service} is for a {accepted}; this connection's certificate names {names}",
            )

    return checked_handler(handler, check)
