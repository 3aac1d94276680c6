"""The router's behaviour without any input or output: events in, actions out.

One event at a time; the same events at the same times give the same actions. The shell carries actions out on
asyncio, a simulator in virtual time. A request that goes well:

    Arrived          session/arrive     a session, its groups, and their places in the queue
    Enqueued         admission/admit    the work ahead is known: accepted with a promise, or refused
    Charged          admission/admit    the same, where others wait and its tenant was charged first
    Granted          queue/grants       a worker has capacity: a decode worker is chosen, a lease asked for
    SettleAnswered   queue/grants       the lease is made: sent to its workers (queue/queue)
    StepReported     session/deliver    tokens, and at last the end (session/finish)

Each event changes `RouterState`. What is then due is done once per event: a plan, and offers of capacity.
"""

from __future__ import annotations

from router.core import outage
from router.core.actions import Action, SendDrain, SetTimer
from router.core.admission.admit import on_charged, on_enqueued, on_queue_full, on_quote_asked
from router.core.admission.shed import plan_if_due
from router.core.capacity.fleet import Worker
from router.core.chores import Chores
from router.core.dispatch.drain import on_target_lost
from router.core.events import (
    AdaptersChanged,
    Arrived,
    CancelAsked,
    Charged,
    ClientGone,
    DrainAsked,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    HoldsLost,
    Nudged,
    QueueSeen,
    QueueWasFull,
    QuoteAsked,
    RouterLeaving,
    RouterStopping,
    SettleAnswered,
    StepReported,
    StoreFailed,
    StoreForgot,
    Timer,
    TimerFired,
    TimerKind,
    WorkerHeld,
    WorkerJoined,
    WorkerLoaded,
    WorkerLost,
)
from router.core.queue.grants import offer_capacity, on_granted, on_grants_answered, on_settled
from router.core.session.arrive import (
    on_arrived,
    on_cancel_asked,
    on_client_gone,
    on_session_timer,
    take_up_awaiting,
)
from router.core.session.deliver import on_step_reported
from router.core.session.finish import forget_at, forget_old, leave, stop
from router.core.session.recover import on_worker_back, on_worker_lost
from router.core.session.session import Phase
from router.core.state import CoreConfig, RouterState
from state.records import QueueStatus

CHORES_S = 0.1
FORGET_S = 1.0
"""Ended requests are kept up to this much longer, so that a busy router forgets many at a time."""


class RouterCore:
    """All decisions of one router."""

    def __init__(self, config: CoreConfig) -> None:
        self.state = RouterState(config)
        self._chores = Chores(self.state)
        self._chores_set = False
        self._forget_set = False

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event in; `now` is in seconds and never runs backwards."""
        state = self.state
        state.now = now
        if state.fleet.serves:
            state.served_at = now
        self._handle(event)
        if state.awaiting and state.fleet.serves:
            take_up_awaiting(state)
        if state.plan_wanted:
            plan_if_due(state)
        if state.offer_due:
            state.offer_due = False
            offer_capacity(state)
        self._set_timers()
        actions, state.actions = state.actions, []
        return actions

    def is_running(self, tenant: str, request_id: str) -> bool:
        """Return True if this router holds the request, and it has not ended."""
        return (tenant, request_id) in self.state.live

    def _set_timers(self) -> None:
        state = self.state
        if (state.live or state.to_dequeue or state.to_release) and not self._chores_set:
            self._chores_set = True
            state.actions.append(SetTimer(Timer(TimerKind.CHORES), state.now + CHORES_S))
        if state.retained and not self._forget_set:
            self._forget_set = True
            at = max(forget_at(state), state.now + FORGET_S)
            state.actions.append(SetTimer(Timer(TimerKind.FORGET), at))

    def _handle(self, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 -- a table of events reads best as one match
        state = self.state
        match event:
            case StepReported():
                on_step_reported(state, event)
            case WorkerLoaded():
                self._worker_loaded(event)
            case WorkerHeld(worker_key):
                worker = state.fleet.workers.get(worker_key)
                if worker is not None:
                    state.fleet.hold(worker)
            case AdaptersChanged(worker_key, adapters, load_s):
                worker = state.fleet.workers.get(worker_key)
                if worker is not None:
                    state.fleet.adapt(worker, adapters, load_s)
                    state.offer_due = True
            case Arrived():
                on_arrived(state, event)
            case Enqueued():
                self._store_answered()
                on_enqueued(state, event)
            case QueueWasFull(request_key):
                state.queue_was_full = state.offer_due = True
                on_queue_full(state, request_key)
            case Granted():
                on_granted(state, event)
            case GrantsAnswered(worker_key):
                on_grants_answered(state, worker_key)
            case SettleAnswered():
                on_settled(state, event)
            case CancelAsked(tenant, request_id):
                on_cancel_asked(state, tenant, request_id)
            case ClientGone(listener):
                on_client_gone(state, listener)
            case QuoteAsked():
                on_quote_asked(state, event)
            case TimerFired(timer):
                self._timer_fired(timer)
            case Charged(request_key, standing):
                on_charged(state, request_key, standing)
            case Nudged():
                state.offer_due = True
            case QueueSeen(waiting, waiting_tokens):
                state.queue = QueueStatus(waiting, waiting_tokens)
                self._store_answered()
            case StoreFailed():
                outage.on_store_failed(state, event)
            case StoreForgot():
                outage.on_store_forgot(state)
            case HoldsLost():
                outage.on_holds_lost(state, event)
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerLost(worker_key, reason):
                on_target_lost(state, worker_key)
                on_worker_lost(state, worker_key, reason)
                state.plan_wanted = state.capacity_died = True
            case DrainAsked(worker_id):
                self._drain(worker_id)
            case RouterLeaving():
                leave(state)
            case RouterStopping():
                for session in list(state.live.values()):
                    stop(state, session)

    def _store_answered(self) -> None:
        if not self.state.store_reachable:
            outage.on_store_back(self.state)

    def _timer_fired(self, timer: Timer) -> None:
        match timer.kind:
            case TimerKind.CHORES:
                self._chores_set = False
                self._chores.run()
            case TimerKind.FORGET:
                self._forget_set = False
                forget_old(self.state)
            case _:
                on_session_timer(self.state, timer)

    def _worker_loaded(self, event: WorkerLoaded) -> None:
        state, worker = self.state, self.state.fleet.workers.get(event.worker_key)
        if worker is not None:
            state.fleet.learn(worker, event.load)
            state.fleet.watch(worker, event.running_step_s)
            state.offer_due = True

    def _worker_joined(self, event: WorkerJoined) -> None:
        state, key = self.state, event.facts.key
        on_target_lost(state, key)
        on_worker_lost(state, key, "joined again")
        worker = Worker(event.facts, event.load, event.cost)
        # Grants to it may have been settled while it was not connected.
        groups = state.groups.values()
        coming = [group for group in groups if group.phase is Phase.SETTLING and group.prefill_key == key]
        worker.coming_tokens = sum(group.work_tokens for group in coming)
        worker.bound_prompts = len(coming)
        state.fleet.join(worker)
        on_worker_back(state, key)
        state.offer_due = True

    def _drain(self, worker_id: str) -> None:
        state = self.state
        for worker in state.fleet.workers.values():
            if worker.facts.worker_id == worker_id and not worker.drain_asked:
                state.fleet.drain(worker)
                state.plan_wanted = state.capacity_died = True
                state.actions.append(SendDrain(worker.key))
