"""Carries the core's actions out on asyncio, and turns what happens into its events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

import structlog

from router.actions import (
    Action,
    AskGrants,
    AskQueue,
    AttemptFailed,
    ChargeTenant,
    Dequeue,
    Enqueue,
    GroupMigrated,
    GroupPreempted,
    PromiseBroken,
    RefundTenant,
    Reject,
    Relay,
    RelayRun,
    ReleaseCredit,
    ReleaseLease,
    Renew,
    RequestEnded,
    RequestRefused,
    RequestShed,
    SendCancel,
    SendDecode,
    SendDrain,
    SendHandOver,
    SendLend,
    SendPrefill,
    SendReceive,
    SetTimer,
    Settle,
    StoreChanged,
    TakeHolds,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellQueued,
    TellRetrying,
)
from router.core import RouterCore
from router.discovery import Discovery
from router.errors import Overloaded
from router.events import (
    Charged,
    ClientGone,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    Nudged,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    StoreCall,
    StoreFailed,
    StoreForgot,
    TimerFired,
)
from router.metrics import RouterMetrics
from router.recording import Recorder
from router.relay import MAX_PENDING_TOKENS, ClientStream
from router.ticker import Ticker
from scheduling.request import FinishReason
from services.tls import FleetTls
from state import records
from state.errors import QueueFull, StoreUnavailable
from state.store import Store

QUEUE_CALL = "queue"
SETTLE_S = 5.0
"""For store calls at the end: a store that hangs gives back what a router held when it expires."""
STALL_S = 30.0
"""A client that takes nothing of what waits for it, from one of these to the next, does not read."""
LEASE_TTL_S = 10.0
"""What a router that died held comes back after this; one that lives renews every second."""


class Shell:
    """One core, its clock, its store, its workers and its clients' streams."""

    def __init__(
        self,
        core: RouterCore,
        store: Store,
        metrics: RouterMetrics,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
        tls: FleetTls | None = None,
    ) -> None:
        self.core = core
        self.store = store
        store.on_new_epoch(lambda: self.submit_soon(StoreForgot()))
        self.metrics = metrics
        self.now = clock
        self._recorder = recorder
        self.router_id = core.book.config.router_id
        link_crashed = metrics.loop_errors.labels("link").inc
        self.ticker = Ticker()
        self.discovery = Discovery(
            store, self.router_id, model_name, self.submit, link_crashed, self.ticker, tls
        )
        metrics.workers.set_function(lambda: self.discovery.num_joined)
        metrics.stalled.set_function(lambda: core.book.fleet.num_stalled)
        metrics.loop_lag.set_function(lambda: self.ticker.lag_s)
        self._log = structlog.get_logger()
        self._streams: dict[int, ClientStream] = {}
        self._last_listener = 0
        self.max_pending_tokens = MAX_PENDING_TOKENS
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Clients

    def open_stream(self) -> tuple[int, ClientStream]:
        """A call's ear: the core tells it what happens to the request it arrives with."""
        self._last_listener += 1
        stream = self._streams[self._last_listener] = ClientStream(self.max_pending_tokens)
        return self._last_listener, stream

    def close_stream(self, listener: int) -> None:
        """The call is over, whoever ended it."""
        if self._streams.pop(listener, None) is not None:
            self.submit(ClientGone(listener))

    def end_stalled(self) -> None:
        """Give up clients that took nothing since this was last called.

        A call that is stuck in a write cannot be ended before the client reads or hangs up: what is held for
        it is let go now, and it hears the error then.
        """
        for listener, stream in list(self._streams.items()):
            if stream.is_stalled():
                stream.fail(Overloaded("the client reads too slowly: what waits for it is too old"))
                self.submit(ClientGone(listener))

    # The core

    def submit(self, event: Event) -> None:
        """Let the core decide, and do what it says."""
        now = self.now()
        actions = self.core.on(event, now)
        if self._recorder is not None:
            self._recorder.take(event, now, actions)
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:  # noqa: C901, PLR0912, PLR0915 -- a table of actions reads best as one match
        match action:
            case Relay():
                self._relay(action)
            case RelayRun():
                self._relay_run(action)
            case (
                TellAccepted()
                | TellQueued()
                | TellChoiceFinished()
                | TellFinished()
                | TellLeaving()
                | TellRetrying()
            ):
                stream = self._streams.get(action.listener)
                if stream is not None:
                    stream.push(action)
            case Reject(listener, error):
                stream = self._streams.get(listener)
                if stream is not None:
                    stream.fail(error)
            case (
                SendPrefill()
                | SendReceive()
                | SendDecode()
                | SendCancel()
                | SendLend()
                | SendHandOver()
                | SendDrain()
            ):
                self.discovery.send(action)
            case Enqueue():
                self._call(action.entry.request_key, StoreCall.ENQUEUE, self._enqueue(action))
            case Dequeue(request_key):
                self._call(request_key, StoreCall.DEQUEUE, self._dequeue(request_key))
            case AskGrants():
                self._call(action.worker.key, StoreCall.GRANT, self._ask_grants(action))
            case Settle():
                self._call(action.request_key, StoreCall.SETTLE, self._settle(action))
            case ReleaseCredit(request_key, worker_key):
                work = self._release_credit(request_key, worker_key)
                self._call(request_key, StoreCall.RELEASE_CREDIT, work, worker_key)
            case ReleaseLease(request_key, worker_key):
                work = self._release_lease(request_key, worker_key)
                self._call(request_key, StoreCall.RELEASE_LEASE, work, worker_key)
            case Renew():
                self._call("", StoreCall.OTHER, self._renew(action))
            case TakeHolds():
                self._call("", StoreCall.TAKE_HOLDS, self._take_holds(action))
            case AskQueue():
                if QUEUE_CALL not in self._calls:  # of a store that hangs it is asked once at a time
                    self._call(QUEUE_CALL, StoreCall.OTHER, self._ask_queue())
            case ChargeTenant(request_key):
                self._call(request_key, StoreCall.CHARGE, self._charge(action))
            case RefundTenant(tenant, tokens):
                self._call("", StoreCall.OTHER, self.store.refund_tenant(tenant, tokens))
            case SetTimer(timer, at):
                delay_s = max(0.0, at - self.now())
                asyncio.get_running_loop().call_later(delay_s, self.submit, TimerFired(timer))
            case RequestEnded():
                self.metrics.ended(action)
            case RequestRefused():
                self.metrics.refused(action)
                self._log.info("refused", error=type(action.error).__name__)
            case RequestShed() | GroupPreempted() | GroupMigrated():
                self.metrics.happened(action)
            case PromiseBroken(request_key):
                self.metrics.happened(action)
                self._log.warning("promise_broken", request=request_key)
            case AttemptFailed():
                self.metrics.attempt_failed(action)
                self._log.warning(
                    "attempt_failed",
                    request=action.request_key,
                    attempt=action.attempt,
                    worker=action.worker_key,
                    reason=action.reason,
                    final=action.final,
                )
            case StoreChanged(reachable, reason):
                self._log.warning("store_changed", reachable=reachable, reason=reason)

    def _relay(self, relay: Relay) -> None:
        """The token path: one row, one buffer."""
        streams = self._streams
        late: list[int] = []
        for listener, choice, index, token_id, text, reason, logprobs in zip(
            relay.listeners,
            relay.choices,
            relay.indexes,
            relay.token_ids,
            relay.texts,
            relay.finish_reasons,
            relay.logprobs,
            strict=True,
        ):
            stream = streams.get(listener)
            if stream is None:
                continue
            if not stream.push_token(choice, index, token_id, text, logprobs, free=relay.replayed):
                late.append(listener)
            elif reason:
                stream.push(TellChoiceFinished(listener, choice, FinishReason(reason), index + 1))
        if not relay.replayed:
            self.metrics.relayed_step(relay)
        for listener in late:
            self.submit_soon(ClientGone(listener))

    def _relay_run(self, run: RelayRun) -> None:
        gap_s = run.max_gap_s
        count = len(run.token_ids)
        self._relay(
            Relay(
                listeners=[run.listener] * count,
                choices=[run.choice] * count,
                indexes=list(range(run.first_index, run.first_index + count)),
                token_ids=list(run.token_ids),
                texts=[""] * count,
                finish_reasons=[0] * (count - 1) + [int(run.finish)],
                logprobs=[None] * count,
                gaps_s=[gap_s] * count,
            )
        )

    def submit_soon(self, event: Event) -> None:
        """Submit after the actions under way: the core takes one event at a time."""
        asyncio.get_running_loop().call_soon(self.submit, event)

    # The store

    def _call(
        self, key: str, call: StoreCall, work: Coroutine[None, None, None], worker_key: str = ""
    ) -> None:
        """Run a store call after the earlier ones of the same key: they must not overtake each other."""
        task = asyncio.create_task(self._after(self._calls.get(key), key, call, work, worker_key))
        self._calls[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._call_done(key, done))

    async def _after(
        self,
        earlier: asyncio.Task[None] | None,
        key: str,
        call: StoreCall,
        work: Coroutine[None, None, None],
        worker_key: str,
    ) -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        try:
            await work
        except StoreUnavailable as error:
            self.submit(StoreFailed(call, key, error.reason, worker_key))

    def _call_done(self, key: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._calls.get(key) is task:
            del self._calls[key]
        if not task.cancelled() and task.exception() is not None:
            self.metrics.loop_errors.labels("store").inc()
            self._log.error("store_call_failed", key=key, exc_info=task.exception())

    async def _enqueue(self, action: Enqueue) -> None:
        key = action.entry.request_key
        try:
            place = await self.store.enqueue(action.entry, action.capacity)
        except QueueFull as full:
            self.submit(QueueWasFull(key, full.capacity))
        else:
            self.submit(Enqueued(key, place.position, place.work_ahead_tokens))

    async def _dequeue(self, request_key: str) -> None:
        await self.store.dequeue(request_key)

    async def _ask_grants(self, action: AskGrants) -> None:
        grants = await self.store.grant(self.router_id, action.worker, action.decoders)
        for grant in grants:
            if grant.router_id == self.router_id:
                self.submit(Granted(grant.request_key, grant.worker_key, grant.decode_key))
        self.submit(GrantsAnswered(action.worker.key))

    async def _settle(self, action: Settle) -> None:
        key, prefill_key = action.request_key, action.prefill_key
        settlement = await self.store.settle(key, prefill_key, action.decoders, LEASE_TTL_S)
        self.submit(SettleAnswered(key, prefill_key, settlement.decode_key, settlement.outcome))

    async def _charge(self, action: ChargeTenant) -> None:
        standing = await self.store.charge_tenant(action.tenant, action.tokens, action.burst)
        self.submit(Charged(action.request_key, standing))

    async def _release_credit(self, request_key: str, worker_key: str) -> None:
        await self.store.release_credit(request_key, worker_key)

    async def _release_lease(self, request_key: str, worker_key: str) -> None:
        await self.store.release_lease(request_key, worker_key)

    async def _renew(self, action: Renew) -> None:
        await self.store.renew(action.credits, action.leases, LEASE_TTL_S)

    async def _take_holds(self, action: TakeHolds) -> None:
        await self.store.take_holds(action.credits, action.leases, LEASE_TTL_S)

    async def _ask_queue(self) -> None:
        status = await self.store.queue_status()
        self.submit(QueueSeen(status.waiting, status.waiting_tokens))

    # Life

    async def run(self) -> None:
        """Find workers, hear notices and watch clients until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ticker.run())
            tasks.create_task(self.discovery.run())
            tasks.create_task(self._hear())
            tasks.create_task(self._watch_clients())

    async def _watch_clients(self) -> None:
        while True:
            await asyncio.sleep(STALL_S)
            self.end_stalled()

    async def _hear(self) -> None:
        async for notice in self.store.notices(self.router_id):
            match notice:
                case records.Granted(grant):
                    self.submit(Granted(grant.request_key, grant.worker_key, grant.decode_key))
                case records.Nudge():
                    self.submit(Nudged())

    async def settle_store_calls(self, timeout_s: float = SETTLE_S) -> None:
        """Wait for the store calls under way, so that nothing stays held after a drain; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
