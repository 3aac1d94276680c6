"""Authenticate callers by the rules in a file, and charge them to budgets that the whole fleet shares."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from router.auth.principal import Principal, caller
from router.auth.rules import AuthFileUnusable, AuthRules, read_rules
from router.errors import Overloaded, Reason, Unauthenticated, Unavailable
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from scheduling.admission.budgets import Payer, Taken, tokenising_cost

SCHEME = "bearer"
TENANT = "x-baton-tenant"
"""Metadata that names the tenant for which a delegate acts."""
RESUME_WAIT_S = 30.0
"""The longest that a resumed call waits for its tenant's budget in all."""


@dataclass(slots=True)
class BudgetWait:
    """How long one call may still wait for its tenant's budget, in seconds.

    A new call does not wait: it is refused. Refusing a resumed call would break its stream.
    """

    left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """The charge for a generation: its prompt, and all it may generate."""

    tenant: str
    max_output_tokens: int
    total: int
    """The tokens that this call has paid."""
    payer: Payer | None = None
    """Set if the request has a name: then calls of that name pay once, and any of them may be the payer."""


class Auth:
    """Authenticates and charges callers by the rules in a file.

    Raises `AuthFileUnusable` when it is built. If the file becomes unusable later, the old rules stay.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._file_stamp = _stamp(path)
        self._rules = read_rules(path)
        self._refunds: dict[str, set[asyncio.Task[None]]] = defaultdict(set)
        """Refunds under way, by tenant. The tenant's next charge waits for them."""
        self._process = f"{secrets.token_hex(8)}:"
        self._calls = itertools.count()

    @property
    def rules(self) -> AuthRules:
        """The rules of the file, which is read again after it has changed."""
        stamp = _stamp(self._path)
        if stamp != self._file_stamp:
            self._file_stamp = stamp
            try:
                self._rules = read_rules(self._path)
            except AuthFileUnusable as error:
                structlog.get_logger().error("door_file_unusable", reason=str(error))
            else:
                structlog.get_logger().info("door_file_read", path=str(self._path))
        return self._rules

    def authenticate(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
        """Return whose call it is. Raises `Unauthenticated`, or `NotAllowed` for who acts for others."""
        metadata = list(metadata)
        values = [value for name, value in metadata if name == "authorization"]
        if len(values) != 1 or not isinstance(values[0], str):
            raise Unauthenticated(
                Reason.CREDENTIAL_MISSING,
                "the call has no credential; accepted: one authorization: Bearer KEY-OR-TOKEN",
            )
        scheme, _, credential = values[0].partition(" ")
        if scheme.lower() != SCHEME or not credential.strip():
            raise Unauthenticated(
                Reason.CREDENTIAL_MISSING,
                "the credential is not a Bearer one; accepted: authorization: Bearer KEY-OR-TOKEN",
            )
        rules = self.rules
        principal = rules.principal_of(credential.strip())
        named = [value for name, value in metadata if name == TENANT and isinstance(value, str)]
        return rules.acting_for(principal, named[0]) if named else principal

    async def admit(self, wait: BudgetWait, num_bytes: int = 0, request: str = "") -> int:
        """Charge one request to its tenant's budget, and what tokenising its text costs.

        `request` names a request and its content: such a one is charged once, however often it is sent.
        Return the tokens charged. Raises `Overloaded` or `Unavailable`.
        """
        tokens = tokenising_cost(num_bytes)
        await self._take(1, tokens, wait, self._payer(request))
        return tokens

    async def charge(
        self,
        prompt_tokens: int,
        max_output_tokens: int,
        received_tokens: int,
        wait: BudgetWait,
        *,
        paid: int = 0,
        request: str = "",
    ) -> Bill | None:
        """Charge a request's tokens, of which `admit` has charged some, and what other calls have paid.

        Return None if its tenant has no token limit. Raises like `admit`.
        """
        principal = caller()
        if principal is None or principal.budget.tokens is None:
            return None
        total = max(0, prompt_tokens + max_output_tokens - received_tokens)
        payer = self._payer(request)
        if payer is None:
            total = max(0, total - paid)  # a receipt knows that
        own = await self._take(0, total, wait, payer)
        return Bill(principal.tenant, max_output_tokens, own, payer)

    def refund(self, bill: Bill, tokens: int) -> None:
        """Refund the tokens that an ended request did not need, without waiting.

        A refund lost with Redis is made up for by the refill.
        """
        if tokens > 0 or bill.payer is not None:  # a receipt is kept for less time from now on
            self._return(bill.tenant, max(0, tokens), bill.payer)

    def cancel(self, bill: Bill) -> None:
        """Refund what a refused call has paid, without waiting. Other calls of its request may go on."""
        if bill.total > 0:
            self._return(bill.tenant, bill.total, bill.payer, is_refused=True)

    def _payer(self, request: str) -> Payer | None:
        return Payer(request, f"{self._process}{next(self._calls)}") if request else None

    def _return(self, tenant: str, tokens: int, payer: Payer | None, *, is_refused: bool = False) -> None:
        task = asyncio.create_task(self._refund(tenant, tokens, payer, is_refused=is_refused))
        self._refunds[tenant].add(task)
        task.add_done_callback(lambda task: self._refunded(tenant, task))

    async def _refund(self, tenant: str, tokens: int, payer: Payer | None, *, is_refused: bool) -> None:
        try:
            await self._store.return_budget(tenant, tokens, payer, is_refused=is_refused)
        except StoreUnavailable as error:
            structlog.get_logger().warning("budget_not_returned", reason=error.reason)

    def _refunded(self, tenant: str, task: asyncio.Task[None]) -> None:
        self._refunds[tenant].discard(task)
        if not self._refunds[tenant]:
            del self._refunds[tenant]

    async def _take(self, requests: int, tokens: int, wait: BudgetWait, payer: Payer | None) -> int:
        """Take from the budget, and return the tokens that this call has paid itself."""
        principal = caller()
        if principal is None or principal.budget.is_unlimited:
            return 0
        if refunds := self._refunds.get(principal.tenant):
            await asyncio.wait(refunds)
        taken = await self._try_take(principal, requests, tokens, payer)
        while 0 < taken.wait_ms <= wait.left_s * 1000:
            wait_s = taken.wait_ms / 1000
            await asyncio.sleep(wait_s)
            wait.left_s -= wait_s
            taken = await self._try_take(principal, requests, tokens, payer)
        if taken.wait_ms:
            wait_s = taken.wait_ms / 1000
            raise Overloaded(
                Reason.BUDGET_EXCEEDED, f"the tenant is over its budget; come back in {wait_s:.1f} s", wait_s
            )
        return round(taken.tokens)

    async def _try_take(self, principal: Principal, requests: int, tokens: int, payer: Payer | None) -> Taken:
        """Take from the budget, unless it is exhausted."""
        tenant = principal.tenant
        try:
            return await self._store.take_budget(tenant, principal.budget, requests, tokens, payer)
        except StoreUnavailable as error:
            if payer is not None and tokens:
                self._return(tenant, tokens, payer, is_refused=True)  # it may have been taken
            raise Unavailable(
                Reason.REDIS_AWAY, f"Redis, which keeps the budgets, does not answer: {error.reason}"
            ) from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a stamp that changes with the file, also when another file replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
