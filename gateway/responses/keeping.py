"""One response's place in the store, while the response is made.

It is kept from the moment when the fleet accepts it, so that others see it and can cancel it. Until its end
the place is leased: the response of a gateway that died is soon gone. When the same request comes again it
takes the place over. The first one then neither renews nor gives it up, but may still keep how it ended.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any

from gateway.responses.store import Record, ResponseStore
from runtime.state.errors import StoreUnavailable

LEASE_S = 120.0
RENEW_S = 30.0


@dataclass(slots=True)
class Keeping:
    """The place of `record`.

    store        None: the response is not kept
    is_demanded  the caller asked for it, so that a Redis that does not respond is an error
    """

    store: ResponseStore | None
    tenant: str
    record: Record
    is_demanded: bool
    _leased_at: float = 0.0

    async def begin(self) -> None:
        """Take the place. Raises `StoreUnavailable` if the caller demanded one."""
        try:
            await self._keep(LEASE_S, takes=True)
        except StoreUnavailable:
            if self.is_demanded:
                raise
            self.store = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew the lease."""
        return self.store is not None and time.monotonic() >= self._leased_at + RENEW_S and self._may_wait

    async def renew(self) -> None:
        """Renew the lease if it is time."""
        if self.is_due:
            with contextlib.suppress(StoreUnavailable):
                await self._keep(LEASE_S)

    async def end(self, response: dict[str, Any]) -> None:
        """Keep the response as it ended. Its `store` says whether it is kept."""
        response["store"] = self._may_wait
        self.record = replace(self.record, response=response)
        try:
            response["store"] = self._may_wait and await self._keep(None)
        except StoreUnavailable:
            response["store"] = False
        if not response["store"]:
            await self.abandon()

    async def abandon(self) -> None:
        """Give up the place."""
        if self.store is not None and self._may_wait:
            with contextlib.suppress(StoreUnavailable):  # the lease ends soon
                await self.store.drop(self.tenant, self.record.response["id"], self.record.holder)

    @property
    def _may_wait(self) -> bool:
        """Whether Redis is worth waiting for: a caller who demanded nothing does not wait for a dead one."""
        return self.store is not None and (self.is_demanded or not self.store.is_away)

    async def _keep(self, ttl_s: float | None, *, takes: bool = False) -> bool:
        self._leased_at = time.monotonic()
        if self.store is None:
            return False
        return await self.store.keep(self.tenant, self.record, ttl_s, takes=takes)
