"""Calls of the store."""

from __future__ import annotations

from scheduling.value import value
from state.records import DecodeRoom, Hold, PrefillRoom, QueueEntry


@value
class Enqueue:
    entry: QueueEntry
    capacity: int


@value
class Dequeue:
    request_key: str


@value
class AskGrants:
    worker: PrefillRoom
    decoders: tuple[DecodeRoom, ...]


@value
class Settle:
    request_key: str
    prefill_key: str
    decoders: tuple[DecodeRoom, ...]
    """The lease is made on the first one with room; the grant holds room on one of them."""


@value
class ReleaseCredit:
    request_key: str
    worker_key: str


@value
class ReleaseLease:
    request_key: str
    worker_key: str


@value
class Renew:
    """Renew every credit and lease that is held, each by request key and worker key."""

    credits: tuple[tuple[str, str], ...]
    leases: tuple[tuple[str, str], ...]


@value
class TakeHolds:
    """Enter every credit and lease that is held in a store that may have forgotten them."""

    credits: tuple[Hold, ...]
    leases: tuple[Hold, ...]


@value
class AskQueue:
    """Look at the queue; an answer also shows that the store is back."""


@value
class ChargeTenant:
    """Charge a newcomer to its tenant, unless the tenant is over its share of the fleet."""

    request_key: str
    tenant: str
    tokens: float
    """Virtual tokens (`scheduling.admission.shares`)."""
    lead: float
    """The longest lead over the least served tenant that is allowed; infinite while little waits."""
    band: float
    """The longest lead that is counted for any tenant."""


@value
class RefundTenant:
    """Return a charge: the request was refused after all."""

    tenant: str
    tokens: float


StoreAction = (
    Enqueue
    | Dequeue
    | AskGrants
    | Settle
    | ReleaseCredit
    | ReleaseLease
    | Renew
    | TakeHolds
    | AskQueue
    | ChargeTenant
    | RefundTenant
)
"""The calls of the store."""
