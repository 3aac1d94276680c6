"""Carry out a router core's actions in virtual time, as `router.links.shell` does on asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from router.core.actions import (
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
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
    SetTimer,
    Settle,
    TellAccepted,
)
from router.core.core import RouterCore
from router.core.events import (
    Charged,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    Nudged,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    TimerFired,
)
from sim.clock import Clock
from sim.spec import Overheads
from sim.store.memory_store import MemoryStore
from sim.workers.worker import WorkerCommand
from state import records
from state.errors import QueueFull

FOREVER_S = 1e9
"""No simulated router dies, so leases need no renewing."""


_TO_WORKERS = (SendPrefill, SendReceive, SendDecode, SendCancel, SendPreCopy, SendStopAndCopy, SendDrain)


class Audience(Protocol):
    """Receives the actions that are neither for the store nor for the clock."""

    def send(self, router: int, command: WorkerCommand) -> None:
        """Send a command to a worker."""
        ...

    def accepted(self, action: TellAccepted) -> None:
        """A request was accepted."""
        ...

    def rejected(self, action: Reject) -> None:
        """A call ended with an error."""
        ...

    def finished(self, action: RequestEnded) -> None:
        """A request is over."""
        ...


class SimShell:
    """A core, its place in the simulation, and its access to the store."""

    def __init__(
        self,
        number: int,
        core: RouterCore,
        store: MemoryStore,
        clock: Clock,
        overheads: Overheads,
        audience: Audience,
    ) -> None:
        self.core = core
        self._number = number
        self._router_id = core.state.config.router_id
        self._store = store
        self._clock = clock
        self._store_s = overheads.store_s
        self._audience = audience
        self._is_nudged = False
        self._table: dict[type, Callable[[Any], None]] = {
            Enqueue: self._later(self._enqueue),
            Dequeue: self._later(self._dequeue),
            AskGrants: self._later(self._ask_grants),
            Settle: self._later(self._settle),
            ReleaseCredit: self._later(self._release_credit),
            ReleaseLease: self._later(self._release_lease),
            AskQueue: self._later(self._ask_queue),
            ChargeTenant: self._later(self._charge_tenant),
            RefundTenant: self._later(self._refund_tenant),
            SetTimer: self._set_timer,
            TellAccepted: audience.accepted,
            Reject: audience.rejected,
            RequestEnded: audience.finished,
            **dict.fromkeys(_TO_WORKERS, self._send),
        }
        store.subscribe(self._router_id, self._hear)

    def submit(self, event: Event) -> None:
        """Let the core decide, and carry out its actions. Actions about tokens and queue places need no
        effect.
        """
        table = self._table
        for action in self.core.on(event, self._clock.now):
            act = table.get(type(action))
            if act is not None:
                act(action)

    def _later(self, call: Callable[[Any], None]) -> Callable[[Action], None]:
        """Delay a store call. All take equally long, so none overtakes another."""

        def act(action: Action) -> None:
            self._clock.at(self._clock.now + self._store_s, call, action)

        return act

    def _send(self, action: WorkerCommand) -> None:
        self._audience.send(self._number, action)

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
        key = action.entry.request_key
        try:
            place = self._store.enqueue(action.entry, action.capacity)
        except QueueFull as full:
            self.submit(QueueWasFull(key, full.capacity))
        else:
            self.submit(Enqueued(key, place.position, place.work_ahead_tokens))

    def _dequeue(self, action: Dequeue) -> None:
        self._store.dequeue(action.request_key)

    def _ask_grants(self, action: AskGrants) -> None:
        for grant in self._store.grant(self._router_id, action.worker, action.decoders):
            if grant.router_id == self._router_id:
                self.submit(Granted(grant.request_key, grant.worker_key, grant.decode_key))
        self.submit(GrantsAnswered(action.worker.key))

    def _settle(self, action: Settle) -> None:
        key, prefill_key = action.request_key, action.prefill_key
        settlement = self._store.settle(key, prefill_key, action.decoders, FOREVER_S)
        self.submit(SettleAnswered(key, prefill_key, settlement.decode_key, settlement.outcome))

    def _release_credit(self, action: ReleaseCredit) -> None:
        self._store.release_credit(action.request_key, action.worker_key)

    def _release_lease(self, action: ReleaseLease) -> None:
        self._store.release_lease(action.request_key, action.worker_key)

    def _charge_tenant(self, action: ChargeTenant) -> None:
        standing = self._store.charge_tenant(action.tenant, action.tokens, action.lead, action.band)
        self.submit(Charged(action.request_key, standing))

    def _refund_tenant(self, action: RefundTenant) -> None:
        self._store.refund_tenant(action.tenant, action.tokens)

    def _ask_queue(self, _: AskQueue) -> None:
        status = self._store.queue_status()
        self.submit(QueueSeen(status.waiting, status.waiting_tokens))
