"""The tenant that a call acts for, as its credential proves. The request cannot choose it."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from dataclasses import dataclass

from router.errors import NotAllowed, Reason
from router.request import RawRequest
from scheduling.admission.budgets import UNLIMITED, Budget
from scheduling.request import SloClass

ALL_CLASSES = frozenset(SloClass)


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Operators may watch and drain the fleet; delegates may act for any tenant."""

    tenant: str
    classes: frozenset[SloClass] = ALL_CLASSES
    operator: bool = False
    budget: Budget = UNLIMITED
    delegate: bool = False


_CALLER: ContextVar[Principal | None] = ContextVar("caller", default=None)


def set_caller(principal: Principal) -> None:
    """Set the caller of the current task's call."""
    _CALLER.set(principal)


def caller() -> Principal | None:
    """Return the current call's caller, or None without authentication."""
    return _CALLER.get()


def tenant_of_call(named: str) -> str:
    """Return the caller's tenant; without authentication, the one named in the request.

    Raises `NotAllowed`.
    """
    principal = caller()
    if principal is None:
        return named
    if named not in ("", principal.tenant):
        raise NotAllowed(
            Reason.TENANT_NOT_ALLOWED,
            "tenant differs from the credential's; accepted: the credential's own, or empty",
            fields=("tenant",),
        )
    return principal.tenant


def as_caller(raw: RawRequest) -> RawRequest:
    """Return the request with its caller's tenant. Raises `NotAllowed` if the caller may not make it."""
    principal = caller()
    if principal is None:
        return raw
    slo_class = SloClass(raw.slo_class) if raw.slo_class in set(SloClass) else SloClass.STANDARD
    if slo_class not in principal.classes:
        allowed = ", ".join(sorted(allowed_class.name.lower() for allowed_class in principal.classes))
        raise NotAllowed(
            Reason.SLO_CLASS_NOT_ALLOWED,
            f"slo.slo_class is {slo_class.name.lower()}; accepted with this credential: {allowed}",
            fields=("slo.slo_class",),
        )
    return dataclasses.replace(raw, tenant=tenant_of_call(raw.tenant))
