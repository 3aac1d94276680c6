"""The lock itself: rules that follow their file, and budgets that the whole fleet keeps."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from router.auth.principal import Principal, caller
from router.auth.rules import DoorFileUnusable, DoorRules, read_rules
from router.errors import Overloaded, Reason, Unauthenticated, Unavailable
from state.errors import StoreUnavailable
from state.store import Store

SCHEME = "bearer"
RESUME_PATIENCE_S = 30.0
"""For all that one call takes of the budgets."""


@dataclass(slots=True)
class Patience:
    """How long one call still waits for its tenant's budget, in seconds.

    A stream that goes on would be broken where a newcomer is refused.
    """

    left_s: float = 0.0

    @classmethod
    def of_call(cls, *, resumed: bool) -> Self:
        """Only what is resumed waits."""
        return cls(RESUME_PATIENCE_S if resumed else 0.0)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a generation was charged: its prompt, and all it may generate."""

    tenant: str
    max_output_tokens: int
    total: int


class Door:
    """Raises `DoorFileUnusable` when it is built; later, a file that is no good leaves the old rules."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._seen = _stamp(path)
        self._rules = read_rules(path)
        self._returning: dict[str, set[asyncio.Task[None]]] = defaultdict(set)
        """By tenant: what comes back to its budget, and is waited for by whatever takes from it next."""

    @property
    def rules(self) -> DoorRules:
        """The file's, read again when it has changed."""
        seen = _stamp(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._rules = read_rules(self._path)
            except DoorFileUnusable as error:
                structlog.get_logger().error("door_file_unusable", reason=str(error))
            else:
                structlog.get_logger().info("door_file_read", path=str(self._path))
        return self._rules

    def authenticate(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
        """Whose call it is. Raises `Unauthenticated`."""
        said = [value for name, value in metadata if name == "authorization"]
        if len(said) != 1 or not isinstance(said[0], str):
            raise Unauthenticated(
                Reason.CREDENTIAL_MISSING,
                "no credential came; accepted: one authorization: Bearer KEY-OR-TOKEN",
            )
        scheme, _, credential = said[0].partition(" ")
        if scheme.lower() != SCHEME or not credential.strip():
            raise Unauthenticated(
                Reason.CREDENTIAL_MISSING,
                "the credential is no Bearer; accepted: authorization: Bearer KEY-OR-TOKEN",
            )
        return self.rules.principal_of(credential.strip())

    async def admit(self, patience: Patience) -> None:
        """A request comes: take it from its tenant's budget. Raises `Overloaded` or `Unavailable`."""
        await self._take(1, 0, patience)

    async def charge(
        self, prompt_tokens: int, max_output_tokens: int, received_tokens: int, patience: Patience
    ) -> Bill | None:
        """Its tokens, once their number is known; None where nothing is counted. Raises as `admit`."""
        principal = caller()
        if principal is None or principal.budget.tokens is None:
            return None
        total = prompt_tokens + max_output_tokens - received_tokens
        bill = Bill(principal.tenant, max_output_tokens, total)
        await self._take(0, bill.total, patience)
        return bill

    def settle(self, bill: Bill, tokens: int) -> None:
        """Give back what was not needed, however the call ends. Lost with Redis, it comes back with time."""
        if tokens <= 0:
            return
        task = asyncio.create_task(self._return(bill.tenant, tokens))
        self._returning[bill.tenant].add(task)
        task.add_done_callback(lambda task: self._returned(bill.tenant, task))

    async def _return(self, tenant: str, tokens: int) -> None:
        try:
            await self._store.return_budget(tenant, tokens)
        except StoreUnavailable as error:
            structlog.get_logger().warning("budget_not_returned", reason=error.reason)

    def _returned(self, tenant: str, task: asyncio.Task[None]) -> None:
        self._returning[tenant].discard(task)
        if not self._returning[tenant]:
            del self._returning[tenant]

    async def _take(self, requests: int, tokens: int, patience: Patience) -> None:
        principal = caller()
        if principal is None or principal.budget.is_unlimited:
            return
        if returning := self._returning.get(principal.tenant):
            await asyncio.wait(returning)
        wait_s = await self._ask(principal, requests, tokens)
        while 0 < wait_s <= patience.left_s:
            await asyncio.sleep(wait_s)
            patience.left_s -= wait_s
            wait_s = await self._ask(principal, requests, tokens)
        if wait_s:
            raise Overloaded(
                Reason.BUDGET_EXCEEDED, f"the tenant is over its budget; come back in {wait_s:.1f} s", wait_s
            )

    async def _ask(self, principal: Principal, requests: int, tokens: int) -> float:
        """0 when it was taken, else the seconds to wait."""
        try:
            taken = await self._store.take_budget(principal.tenant, principal.budget, requests, tokens)
        except StoreUnavailable as error:
            raise Unavailable(
                Reason.REDIS_AWAY, f"Redis, which keeps the budgets, does not answer: {error.reason}"
            ) from error
        return taken.wait_ms / 1000


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file, also when it is replaced by another."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
