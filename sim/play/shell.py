"""Carry out a router core's actions in virtual time, as `router.links.shell` does on asyncio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from router.core.dispatch import request_of
from router.core.model.actions import (
    Action,
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    RefundTenant,
    Reject,
    ReleaseCredit,
    ReleaseLease,
    RequestEnded,
    SetTimer,
    Settle,
    TellAccepted,
)
from router.core.model.events import (
    Charged,
    Enqueued,
    Granted,
    GrantsAnswered,
    Nudged,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    TimerFired,
)
from router.core.simulated_runs import SimulatedEvent, SimulatedRouterCore
from runtime.state import records
from runtime.state.errors import QueueFull
from sim.clock import Clock
from sim.delays import delay_of
from sim.requests import Requests
from sim.spec import SimSpec
from sim.store.memory_store import MemoryStore
from sim.workers.worker import WorkerCommand

FOREVER_S = 1e9
"""No simulated router dies, so leases need no renewing."""


class SimShell:
    """A core, its place in the simulation, and its access to the store."""

    def __init__(
        self,
        number: int,
        core: SimulatedRouterCore,
        store: MemoryStore,
        clock: Clock,
        spec: SimSpec,
        requests: Requests,
        send: Callable[[int, WorkerCommand], None],
    ) -> None:
        self.core = core
        self._caller = core.state.config.caller
        self._store = store
        self._clock = clock
        self._store_s = spec.overheads.store_s
        self._delays = spec.delays
        self._answered_at = 0.0
        """When the last call so far to the store is answered."""
        self._is_nudged = False
        self._table: dict[type, Callable[[Any], None]] = {
            Enqueue: self._later(self._enqueue, "enqueue"),
            Dequeue: self._later(lambda action: store.dequeue(action.request_key)),
            AskGrants: self._later(self._ask_grants, "grant"),
            Settle: self._later(self._settle, "settle"),
            ReleaseCredit: self._later(
                lambda action: store.release_credit(action.request_key, action.worker_key)
            ),
            ReleaseLease: self._later(
                lambda action: store.release_lease(action.request_key, action.worker_key)
            ),
            AskQueue: self._later(self._ask_queue),
            ChargeTenant: self._later(self._charge_tenant),
            RefundTenant: self._later(
                lambda action: store.refund_tenant(
                    action.tenant, action.tokens, request_of(action.request_key)
                )
            ),
            SetTimer: self._set_timer,
            TellAccepted: requests.accepted,
            Reject: requests.rejected,
            RequestEnded: requests.finished,
            **dict.fromkeys(get_args(WorkerCommand), partial(send, number)),
        }
        store.subscribe(self._caller, self._hear)

    def submit(self, event: SimulatedEvent) -> None:
        """Let the core decide, and carry out its actions. Actions about tokens and queue places need no
        effect.
        """
        table = self._table
        for action in self.core.on(event, self._clock.now):
            act = table.get(type(action))
            if act is not None:
                act(action)

    def _later(self, call: Callable[[Any], Any], kind: str = "") -> Callable[[Action], None]:
        """Delay a store call. All share a connection, so none overtakes another."""
        delay_s = delay_of(kind, self._delays, self._store_s)

        def act(action: Action) -> None:
            now = self._clock.now
            self._answered_at = max(self._answered_at, now + delay_s(now))
            self._clock.at(self._answered_at, call, action)

        return act

    def _set_timer(self, action: SetTimer) -> None:
        self._clock.at(max(action.at, self._clock.now), self.submit, TimerFired(action.timer))

    def _hear(self, notice: records.Notice) -> None:
        if isinstance(notice, records.Grant):
            event = Granted(notice.request_key, notice.worker_key, notice.decode_key)
            self._clock.at(self._clock.now + self._store_s / 2, self.submit, event)
        elif not self._is_nudged:
            self._is_nudged = True
            self._clock.at(self._clock.now + self._store_s / 2, self._nudge)

    def _nudge(self) -> None:
        self._is_nudged = False
        self.submit(Nudged())

    # The store

    def _enqueue(self, action: Enqueue) -> None:
        key, offer = action.entry.request_key, action.offer
        if offer is not None and self._store.lease_at_once(
            action.entry, offer.worker, offer.decoder, FOREVER_S
        ):
            self.submit(Granted(key, offer.worker.key, offer.decoder.key, is_leased=True))
            self.submit(Enqueued(key, 0, 0))
            return
        try:
            place = self._store.enqueue(action.entry, action.capacity)
        except QueueFull as full:
            self.submit(QueueWasFull(key, full.capacity))
        else:
            self.submit(Enqueued(key, place.position, place.work_ahead_tokens))

    def _ask_grants(self, action: AskGrants) -> None:
        for grant in self._store.grant(self._caller, action.worker, action.decoders):
            if grant.router_id == self._caller:
                self.submit(Granted(grant.request_key, grant.worker_key, grant.decode_key))
        self.submit(GrantsAnswered(action.worker.key))

    def _settle(self, action: Settle) -> None:
        key, prefill_key = action.request_key, action.prefill_key
        settlement = self._store.settle(key, prefill_key, action.decoders, FOREVER_S)
        self.submit(SettleAnswered(key, prefill_key, settlement.decode_key, settlement.outcome))

    def _charge_tenant(self, action: ChargeTenant) -> None:
        request = request_of(action.request_key)
        standing = self._store.charge_tenant(action.tenant, action.tokens, action.lead, action.band, request)
        self.submit(Charged(action.request_key, standing))

    def _ask_queue(self, _: AskQueue) -> None:
        status = self._store.queue_status()
        self.submit(QueueSeen(status.waiting, status.waiting_tokens))
