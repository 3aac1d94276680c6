"""Carry out the core's calls to the store in order, and submit the results as events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from router.core.dispatch import request_of
from router.core.model.actions import (
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    RefundTenant,
    ReleaseCredit,
    ReleaseLease,
    Renew,
    Settle,
    StoreAction,
    TakeHolds,
)
from router.core.model.events import (
    Charged,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    HoldsLost,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    StoreCall,
    StoreFailed,
)
from runtime.state.errors import QueueFull, StoreUnavailable
from runtime.state.records import LEASE_TTL_S
from runtime.state.store import Store

QUEUE_CALL, RENEW_CALL = "queue", "renew"
"""Keys of calls that are made one at a time, so that they do not pile up if the store hangs."""
SETTLE_S = 5.0
"""The time for the last calls. If the store hangs, what the router holds expires there."""


@dataclass(slots=True)
class _PendingEnqueue:
    """An enqueue call that has not begun: its newest action, and its task."""

    action: Enqueue
    task: asyncio.Task[None] | None = None


class StoreCalls:
    """The calls under way. Calls of the same key run one after the other, those without a key at once.

    Repeated calls must not pile up while the store is slow or away. A new enqueue call of a key therefore
    replaces one that has not begun, unless a call of another kind was made in between.
    """

    def __init__(
        self,
        store: Store,
        caller: str,
        submit: Callable[[Event], None],
        on_crash: Callable[[], None],
    ) -> None:
        self._store = store
        self._caller = caller
        self._submit = submit
        self._on_crash = on_crash
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending_enqueues: dict[str, _PendingEnqueue] = {}
        self._log = structlog.get_logger()

    def __len__(self) -> int:
        """Return how many calls run or wait for their turn."""
        return len(self._tasks)

    def do(self, action: StoreAction) -> None:  # noqa: C901, PLR0912 -- a table of actions reads best as one match
        """Start a call after the earlier ones of its key."""
        match action:
            case Enqueue():
                self._enqueue_newest(action)
            case Dequeue(request_key, prefill_key, decode_keys):
                work = _ignore_result(self._store.dequeue(request_key))
                failed = StoreFailed(StoreCall.DEQUEUE, request_key, "", prefill_key, decode_keys)
                self._call(failed, work)
            case AskGrants():
                self._call(StoreFailed(StoreCall.GRANT, action.worker.key, ""), self._grant(action))
            case Settle():
                self._call(_unsettled(action), self._settle(action))
            case ReleaseCredit(request_key, worker_key):
                work = _ignore_result(self._store.release_credit(request_key, worker_key))
                self._call(StoreFailed(StoreCall.RELEASE_CREDIT, request_key, "", worker_key), work)
            case ReleaseLease(request_key, worker_key):
                work = _ignore_result(self._store.release_lease(request_key, worker_key))
                self._call(StoreFailed(StoreCall.RELEASE_LEASE, request_key, "", worker_key), work)
            case Renew(credits, leases):
                if RENEW_CALL not in self._last:
                    self._call(StoreFailed(StoreCall.OTHER, RENEW_CALL, ""), self._renew(credits, leases))
            case TakeHolds(credits, leases):
                work = _ignore_result(self._store.take_holds(credits, leases, LEASE_TTL_S))
                self._call(StoreFailed(StoreCall.TAKE_HOLDS, "", ""), work)
            case AskQueue():
                if QUEUE_CALL not in self._last:
                    self._call(StoreFailed(StoreCall.OTHER, QUEUE_CALL, ""), self._queue_status())
            case ChargeTenant(request_key):
                self._call(StoreFailed(StoreCall.CHARGE, request_key, ""), self._charge(action))
            case RefundTenant(request_key, tenant, tokens):
                work = _ignore_result(self._store.refund_tenant(tenant, tokens, request_of(request_key)))
                self._call(StoreFailed(StoreCall.OTHER, "", ""), work)

    async def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait at most `timeout_s` for the calls under way, so that nothing stays held after a drain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))

    def _call(self, failed: StoreFailed, work: Coroutine[None, None, Sequence[Event]]) -> asyncio.Task[None]:
        """Start a call after the earlier ones of its key; `failed` is its event should it fail."""
        key = failed.key
        task = asyncio.create_task(self._after(self._last.get(key), failed, work))
        if key:
            self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(key, done))
        return task

    async def _after(
        self,
        earlier: asyncio.Task[None] | None,
        failed: StoreFailed,
        work: Coroutine[None, None, Sequence[Event]],
    ) -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        events: Sequence[Event]
        try:
            events = await work
        except StoreUnavailable as error:
            events = (replace(failed, reason=error.reason),)
        except Exception as error:  # noqa: BLE001 - the core would wait for the result forever
            self._on_crash()
            self._log.exception("store_call_failed", key=failed.key)
            events = (replace(failed, reason=type(error).__name__),)
        for event in events:
            self._submit(event)

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled() and task.exception() is not None:
            self._on_crash()
            self._log.error("store_answer_failed", key=key, exc_info=task.exception())

    def _enqueue_newest(self, action: Enqueue) -> None:
        key = action.entry.request_key
        pending = self._pending_enqueues.get(key)
        if pending is not None and self._last.get(key) is pending.task:
            pending.action = action
            return
        pending = self._pending_enqueues[key] = _PendingEnqueue(action)
        pending.task = self._call(_not_enqueued(action), self._enqueue(key, pending))

    async def _enqueue(self, key: str, pending: _PendingEnqueue) -> Sequence[Event]:
        if self._pending_enqueues.get(key) is pending:
            del self._pending_enqueues[key]
        action, offer = pending.action, pending.action.offer
        if offer is not None and await self._store.lease_at_once(
            action.entry, offer.worker, offer.decoder, LEASE_TTL_S
        ):
            granted = Granted(key, offer.worker.key, offer.decoder.key, is_leased=True)
            return (granted, Enqueued(key, 0, 0))
        try:
            place = await self._store.enqueue(action.entry, action.capacity)
        except QueueFull as full:
            return (QueueWasFull(key, full.capacity),)
        return (Enqueued(key, place.position, place.work_ahead_tokens),)

    async def _grant(self, action: AskGrants) -> Sequence[Event]:
        grants = await self._store.grant(self._caller, action.worker, action.decoders)
        own = [
            Granted(grant.request_key, grant.worker_key, grant.decode_key)
            for grant in grants
            if grant.router_id == self._caller
        ]
        return (*own, GrantsAnswered(action.worker.key))

    async def _settle(self, action: Settle) -> Sequence[Event]:
        key, prefill_key = action.request_key, action.prefill_key
        settlement = await self._store.settle(key, prefill_key, action.decoders, LEASE_TTL_S)
        return (SettleAnswered(key, prefill_key, settlement.decode_key, settlement.outcome),)

    async def _renew(
        self, credits: Iterable[tuple[str, str]], leases: Iterable[tuple[str, str]]
    ) -> Sequence[Event]:
        lost = await self._store.renew(credits, leases, LEASE_TTL_S)
        return (HoldsLost(lost.credits, lost.leases),) if lost.credits or lost.leases else ()

    async def _charge(self, action: ChargeTenant) -> Sequence[Event]:
        request = request_of(action.request_key)
        standing = await self._store.charge_tenant(
            action.tenant, action.tokens, action.lead, action.band, request
        )
        return (Charged(action.request_key, standing),)

    async def _queue_status(self) -> Sequence[Event]:
        status = await self._store.queue_status()
        return (QueueSeen(status.waiting, status.waiting_tokens),)


def _not_enqueued(action: Enqueue) -> StoreFailed:
    key, offer = action.entry.request_key, action.offer
    if offer is None:
        return StoreFailed(StoreCall.ENQUEUE, key, "")
    return StoreFailed(StoreCall.ENQUEUE, key, "", offer.worker.key, (offer.decoder.key,))


def _unsettled(action: Settle) -> StoreFailed:
    decode_keys = tuple(room.key for room in action.decoders)
    return StoreFailed(StoreCall.SETTLE, action.request_key, "", action.prefill_key, decode_keys)


async def _ignore_result(work: Coroutine[None, None, object]) -> Sequence[Event]:
    """Await a call whose result makes no event."""
    await work
    return ()
