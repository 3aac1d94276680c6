"""Who a call is made for: proved by a credential, never said by the request."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from dataclasses import dataclass

from router.api.validation import RawRequest
from router.errors import NotAllowed, Reason
from scheduling.admission.budgets import UNLIMITED, Budget
from scheduling.request import SloClass

ALL_CLASSES = frozenset(SloClass)


@dataclass(frozen=True, slots=True)
class Principal:
    """Operators may watch and drain the fleet."""

    tenant: str
    classes: frozenset[SloClass] = ALL_CLASSES
    operator: bool = False
    budget: Budget = UNLIMITED


_CALLER: ContextVar[Principal | None] = ContextVar("caller", default=None)


def set_caller(principal: Principal) -> None:
    """For the call whose task this is."""
    _CALLER.set(principal)


def caller() -> Principal | None:
    """None where the door has no lock."""
    return _CALLER.get()


def tenant_of_call(named: str) -> str:
    """The caller's; the request's own word counts only where the door has no lock. Raises `NotAllowed`."""
    principal = caller()
    if principal is None:
        return named
    if named not in ("", principal.tenant):
        raise NotAllowed(
            Reason.TENANT_NOT_ALLOWED,
            "tenant is not the credential's; accepted: leave it empty",
            fields=("tenant",),
        )
    return principal.tenant


def as_caller(raw: RawRequest) -> RawRequest:
    """The request as its caller may make it. Raises `NotAllowed`."""
    principal = caller()
    if principal is None:
        return raw
    slo_class = SloClass(raw.slo_class) if raw.slo_class in set(SloClass) else SloClass.STANDARD
    if slo_class not in principal.classes:
        allowed = ", ".join(sorted(one.name.lower() for one in principal.classes))
        raise NotAllowed(
            Reason.SLO_CLASS_NOT_ALLOWED,
            f"slo.slo_class is {slo_class.name.lower()}; this credential allows: {allowed}",
            fields=("slo.slo_class",),
        )
    return dataclasses.replace(raw, tenant=tenant_of_call(raw.tenant))
