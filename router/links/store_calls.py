"""What the core asks of the store: carried out in order, and answered with events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import structlog

from router.core.actions import (
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
from router.core.events import (
    Charged,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    StoreCall,
    StoreFailed,
)
from state.errors import QueueFull, StoreUnavailable
from state.store import Store

QUEUE_CALL, RENEW_CALL = "queue", "renew"
"""Of a store that hangs these are asked once at a time."""
SETTLE_S = 5.0
"""For store calls at the end: a store that hangs gives back what a router held when it expires."""
LEASE_TTL_S = 10.0
"""What a router that died held comes back after this; one that lives renews every second."""


@dataclass(slots=True)
class _Asking:
    """A call for a place that has not begun: what it will ask for, and its task."""

    action: Enqueue
    task: asyncio.Task[None] | None = None


class StoreCalls:
    """The calls under way: those of one key one after the other, and no more of them than can matter.

    A store that is slow or away must not be buried under what is asked of it again and again: of a place in
    the queue, a key has at most one call that has not begun after its last call of another kind.
    """

    def __init__(
        self,
        store: Store,
        router_id: str,
        submit: Callable[[Event], None],
        on_crash: Callable[[], None],
    ) -> None:
        self._store = store
        self._router_id = router_id
        self._submit = submit
        self._on_crash = on_crash
        self._last: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: dict[str, _Asking] = {}
        self._log = structlog.get_logger()

    def __len__(self) -> int:
        """How many are under way or wait for their turn."""
        return len(self._tasks)

    def do(self, action: StoreAction) -> None:  # noqa: C901, PLR0912 -- a table of actions reads best as one match
        """Start it, after the earlier ones of its key."""
        match action:
            case Enqueue():
                self._ask_place(action)
            case Dequeue(request_key):
                self._call(request_key, StoreCall.DEQUEUE, _unheard(self._store.dequeue(request_key)))
            case AskGrants():
                self._call(action.worker.key, StoreCall.GRANT, self._ask_grants(action))
            case Settle():
                self._call(action.request_key, StoreCall.SETTLE, self._settle(action))
            case ReleaseCredit(request_key, worker_key):
                work = _unheard(self._store.release_credit(request_key, worker_key))
                self._call(request_key, StoreCall.RELEASE_CREDIT, work, worker_key)
            case ReleaseLease(request_key, worker_key):
                work = _unheard(self._store.release_lease(request_key, worker_key))
                self._call(request_key, StoreCall.RELEASE_LEASE, work, worker_key)
            case Renew(credits, leases):
                if RENEW_CALL not in self._last:
                    work = _unheard(self._store.renew(credits, leases, LEASE_TTL_S))
                    self._call(RENEW_CALL, StoreCall.OTHER, work)
            case TakeHolds(credits, leases):
                work = _unheard(self._store.take_holds(credits, leases, LEASE_TTL_S))
                self._call("", StoreCall.TAKE_HOLDS, work)
            case AskQueue():
                if QUEUE_CALL not in self._last:
                    self._call(QUEUE_CALL, StoreCall.OTHER, self._ask_queue())
            case ChargeTenant(request_key):
                self._call(request_key, StoreCall.CHARGE, self._charge(action))
            case RefundTenant(tenant, tokens):
                self._call("", StoreCall.OTHER, _unheard(self._store.refund_tenant(tenant, tokens)))

    async def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait for the calls under way, so that nothing stays held after a drain; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))

    def _call(
        self, key: str, call: StoreCall, work: Coroutine[None, None, Sequence[Event]], worker_key: str = ""
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._after(self._last.get(key), key, call, work, worker_key))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(key, done))
        return task

    async def _after(
        self,
        earlier: asyncio.Task[None] | None,
        key: str,
        call: StoreCall,
        work: Coroutine[None, None, Sequence[Event]],
        worker_key: str,
    ) -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        answers: Sequence[Event]
        try:
            answers = await work
        except StoreUnavailable as error:
            answers = (StoreFailed(call, key, error.reason, worker_key),)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer would wait for ever
            self._on_crash()
            self._log.exception("store_call_failed", key=key)
            answers = (StoreFailed(call, key, type(error).__name__, worker_key),)
        for answer in answers:
            self._submit(answer)

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled() and task.exception() is not None:
            self._on_crash()
            self._log.error("store_answer_failed", key=key, exc_info=task.exception())

    def _ask_place(self, action: Enqueue) -> None:
        key = action.entry.request_key
        asking = self._asking.get(key)
        if asking is not None and self._last.get(key) is asking.task:
            asking.action = action
            return
        asking = self._asking[key] = _Asking(action)
        asking.task = self._call(key, StoreCall.ENQUEUE, self._enqueue(key, asking))

    async def _enqueue(self, key: str, asking: _Asking) -> Sequence[Event]:
        if self._asking.get(key) is asking:
            del self._asking[key]
        action = asking.action
        try:
            place = await self._store.enqueue(action.entry, action.capacity)
        except QueueFull as full:
            return (QueueWasFull(key, full.capacity),)
        return (Enqueued(key, place.position, place.work_ahead_tokens),)

    async def _ask_grants(self, action: AskGrants) -> Sequence[Event]:
        grants = await self._store.grant(self._router_id, action.worker, action.decoders)
        own = [
            Granted(one.request_key, one.worker_key, one.decode_key)
            for one in grants
            if one.router_id == self._router_id
        ]
        return (*own, GrantsAnswered(action.worker.key))

    async def _settle(self, action: Settle) -> Sequence[Event]:
        key, prefill_key = action.request_key, action.prefill_key
        settlement = await self._store.settle(key, prefill_key, action.decoders, LEASE_TTL_S)
        return (SettleAnswered(key, prefill_key, settlement.decode_key, settlement.outcome),)

    async def _charge(self, action: ChargeTenant) -> Sequence[Event]:
        standing = await self._store.charge_tenant(action.tenant, action.tokens, action.lead, action.band)
        return (Charged(action.request_key, standing),)

    async def _ask_queue(self) -> Sequence[Event]:
        status = await self._store.queue_status()
        return (QueueSeen(status.waiting, status.waiting_tokens),)


async def _unheard(work: Coroutine[None, None, object]) -> Sequence[Event]:
    """Nobody waits for what comes of it."""
    await work
    return ()
