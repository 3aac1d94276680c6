"""The router's behaviour without any input or output: events in, actions out.

One event at a time; the same events at the same times give the same actions. The shell carries actions out on
asyncio, a simulator in virtual time. To change how a request

    comes in            arrivals.py         is placed and leased   queueing.py
    is promised a time  promising.py        goes to workers        dispatching.py
    is admitted         admitting.py        is streamed            relaying.py
    is quoted           quoting.py          survives a worker      recovery.py
    ends                ending.py
"""

from __future__ import annotations

from router.core.actions import (
    Action,
    AskQueue,
    Dequeue,
    ReleaseCredit,
    ReleaseLease,
    Renew,
    SendDrain,
    SetTimer,
    StoreChanged,
    TakeHolds,
)
from router.core.admission.admitting import on_charged, on_enqueue_failed, on_enqueued, on_queue_full
from router.core.admission.quoting import on_quote_asked
from router.core.admission.shedding import plan_if_due
from router.core.capacity.fleet import Worker
from router.core.capacity.roles import rebalance_roles
from router.core.dispatch.dispatching import dispatch
from router.core.dispatch.draining import clear, on_target_lost
from router.core.dispatch.migrating import migrate
from router.core.dispatch.seat_preemption import make_way
from router.core.events import (
    Arrived,
    CancelAsked,
    Charged,
    ClientGone,
    DrainAsked,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    Nudged,
    QueueSeen,
    QueueWasFull,
    QuoteAsked,
    RouterLeaving,
    RouterStopping,
    SettleAnswered,
    StepReported,
    StoreCall,
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
from router.core.queue.granting import ask_grants
from router.core.queue.local_service import serve_stranded
from router.core.queue.queueing import enqueue, most_blocks, on_granted, on_settled, strand
from router.core.session import ending
from router.core.session.arrival import (
    on_arrived,
    on_cancel_asked,
    on_client_gone,
    on_session_timer,
    take_up_awaiting,
)
from router.core.session.delivery import on_step_reported
from router.core.session.leaving import leave
from router.core.session.recovery import give_up, is_too_much, on_worker_back, on_worker_lost
from router.core.session.session import Group, Phase
from router.core.state import CoreConfig, RouterState
from scheduling.placement import Placement
from scheduling.request import FinishReason
from state.records import Hold, QueueStatus

CHORES_S = 0.1
FORGET_S = 1.0
"""Ended requests are kept up to this much longer, so that a busy router forgets many at a time."""
RENEW_S = 1.0
ASK_AGAIN_S = 1.0
"""A place in the queue is asked for again after this long: a grant that got lost took the place with it."""
MOST_ASKED_AGAIN = 20
"""Places asked for again each time there are chores: where more wait, each is asked for the less often."""


class RouterCore:
    """All decisions of one router."""

    def __init__(self, config: CoreConfig) -> None:
        self.state = RouterState(config)
        self._renewed_at = -RENEW_S
        self._fitted_to = 0
        """The version of the fleet that whoever waits was last seen to fit into."""
        self._must_enter = False
        """What is held could not be entered in the store, which had forgotten it."""

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event in; `now` is in seconds and never runs backwards."""
        state = self.state
        state.now = now
        if state.fleet.serves():
            state.served_at = now
        self._handle(event)
        if state.awaiting and state.fleet.serves():
            take_up_awaiting(state)
        if state.plan_wanted:
            plan_if_due(state)
        if state.grants_wanted:
            state.grants_wanted = False
            ask_grants(state)
        if (state.live or state.to_dequeue or state.to_release) and not state.chores_set:
            state.chores_set = True
            state.do(SetTimer(Timer(TimerKind.CHORES), now + CHORES_S))
        if state.retained and not state.forget_set:
            state.forget_set = True
            state.do(SetTimer(Timer(TimerKind.FORGET), max(state.forget_at, now + FORGET_S)))
        actions, state.out = state.out, []
        return actions

    def is_running(self, tenant: str, request_id: str) -> bool:
        """This router holds the request, and it has not ended."""
        return (tenant, request_id) in self.state.live

    def _handle(self, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 -- a table of events reads best as one match
        state = self.state
        match event:
            case StepReported():
                on_step_reported(state, event)
            case WorkerLoaded(worker_key, load, running_step_s):
                worker = state.fleet.workers.get(worker_key)
                if worker is not None:
                    state.fleet.learn(worker, load)
                    state.fleet.watch(worker, running_step_s)
                    state.grants_wanted = True
            case WorkerHeld(worker_key):
                worker = state.fleet.workers.get(worker_key)
                if worker is not None:
                    state.fleet.hold(worker)
            case Arrived():
                on_arrived(state, event)
            case Enqueued(request_key, position, work_ahead_tokens):
                self._store_answered()
                on_enqueued(state, request_key, position, work_ahead_tokens)
            case QueueWasFull(request_key):
                on_queue_full(state, request_key)
            case Granted():
                on_granted(state, event)
            case GrantsAnswered(worker_key):
                self._grants_answered(worker_key)
            case SettleAnswered():
                self._settled(event)
            case CancelAsked(tenant, request_id):
                on_cancel_asked(state, tenant, request_id)
            case ClientGone(listener):
                on_client_gone(state, listener)
            case QuoteAsked():
                on_quote_asked(state, event)
            case TimerFired(timer):
                if timer.kind is TimerKind.CHORES:
                    self._chores()
                elif timer.kind is TimerKind.FORGET:
                    state.forget_set = False
                    state.forget_old()
                else:
                    on_session_timer(state, timer)
            case Charged(request_key, standing):
                on_charged(state, request_key, standing)
            case Nudged():
                state.grants_wanted = True
            case QueueSeen(waiting, waiting_tokens):
                state.queue = QueueStatus(waiting, waiting_tokens)
                self._store_answered()
            case StoreFailed():
                self._store_failed(event)
            case StoreForgot():
                self._enter_again()
            case WorkerJoined(facts, load, cost):
                on_target_lost(state, facts.key)
                on_worker_lost(state, facts.key, "joined again")
                state.join(Worker(facts, load, cost))
                on_worker_back(state, facts.key)
                state.grants_wanted = True
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
                    ending.break_off(state, session)

    def _grants_answered(self, worker_key: str) -> None:
        worker = self.state.fleet.workers.get(worker_key)
        if worker is not None:
            worker.asking = False

    def _settled(self, event: SettleAnswered) -> None:
        group = on_settled(self.state, event.request_key, event.prefill_key, event.decode_key, event.outcome)
        if group is not None:
            dispatch(self.state, group)
            self.state.grants_wanted = True

    def _drain(self, worker_id: str) -> None:
        for worker in self.state.fleet.workers.values():
            if worker.facts.worker_id == worker_id and not worker.drain_asked:
                self.state.fleet.drain(worker)
                self.state.plan_wanted = self.state.capacity_died = True
                self.state.do(SendDrain(worker.key))

    def _store_answered(self) -> None:
        state = self.state
        if state.store_reachable:
            return
        state.store_reachable = True
        state.do(StoreChanged(reachable=True, reason=""))
        if self._must_enter:
            self._must_enter = False
            self._take_holds()
        for request_key in sorted(state.to_dequeue - state.groups.keys()):
            state.do(Dequeue(request_key))
        state.to_dequeue.clear()
        releases, state.to_release = state.to_release, {}
        for release in releases:
            if not self._is_held(release):
                state.do(release)

    def _enter_again(self) -> None:
        """What runs enters what it holds, before anybody is granted it; whatever waits asks for a place."""
        self._take_holds()
        for group in list(self.state.waiting):
            enqueue(self.state, group)

    def _take_holds(self) -> None:
        groups = self.state.groups.values()
        holds = TakeHolds(
            tuple(Hold(one.key, one.credit_on, one.work_tokens) for one in groups if one.credit_on),
            tuple(Hold(one.key, one.lease_on, one.blocks) for one in groups if one.lease_on),
        )
        if holds.credits or holds.leases:
            self.state.do(holds)

    def _is_held(self, release: ReleaseCredit | ReleaseLease) -> bool:
        """A later attempt has, or is about to have, what an earlier one could not return."""
        group = self.state.groups.get(release.request_key)
        if group is None or group.phase not in (Phase.SETTLING, Phase.RUNNING):
            return False
        is_settling = group.phase is Phase.SETTLING and release.worker_key == group.held_key
        return is_settling or release.worker_key in (group.prefill_key, group.decode_key)

    def _store_failed(self, event: StoreFailed) -> None:
        state = self.state
        if state.store_reachable:
            state.store_reachable = False
            state.do(StoreChanged(reachable=False, reason=event.reason))
        if event.call is StoreCall.GRANT:
            self._grants_answered(event.key)
            return
        if event.call is StoreCall.CHARGE:
            on_charged(state, event.key, None)
            return
        if event.call is StoreCall.RELEASE_CREDIT:
            state.to_release[ReleaseCredit(event.key, event.worker_key)] = None
            return
        if event.call is StoreCall.RELEASE_LEASE:
            state.to_release[ReleaseLease(event.key, event.worker_key)] = None
            return
        if event.call is StoreCall.TAKE_HOLDS:
            self._must_enter = True
            return
        group = state.groups.get(event.key)
        if group is None:
            if event.call in (StoreCall.ENQUEUE, StoreCall.DEQUEUE):
                state.to_dequeue.add(event.key)
        elif event.call is StoreCall.ENQUEUE and group.phase in (Phase.ENQUEUEING, Phase.WAITING):
            on_enqueue_failed(state, group, event.reason)
        elif event.call is StoreCall.SETTLE and group.phase is Phase.SETTLING:
            strand(state, group)
            group.prefill_key = group.decode_key = None

    def _chores(self) -> None:
        state = self.state
        state.chores_set = False
        state.plan_wanted = True
        take_up_awaiting(state)
        for request_key in list(state.stranded):
            self._help(request_key)
        if not state.store_reachable:
            serve_stranded(state)
        for group in state.waiting.take_unheard(state.now, ASK_AGAIN_S, MOST_ASKED_AGAIN):
            enqueue(state, group)
        self._strand_unfit()
        for worker in list(state.fleet.workers.values()):
            if worker.draining:
                clear(state, worker)
            elif worker.preempted:
                migrate(state, worker)
        make_way(state)
        self._renew()
        if not state.store_reachable:
            state.do(AskQueue())
        state.grants_wanted = True

    def _strand_unfit(self) -> None:
        """Who waits for a worker that is gone shall not do so for ever."""
        state = self.state
        if self._fitted_to == state.fleet.version:
            return
        self._fitted_to = state.fleet.version
        for group in list(state.waiting):
            if group.session.admitted and not _fits(state, group):
                ending.leave_queue(state, group)
                strand(state, group)

    def _help(self, request_key: str) -> None:
        """Bring a stranded group on its way, or give it up when no worker has come for it."""
        state = self.state
        group = state.groups.get(request_key)
        if group is None:
            return
        if not _fits(state, group) and group.stranded_at is not None:
            if state.now - group.stranded_at > state.config.no_worker_grace_s:
                error = "no decode worker that could run it came back"
                ending.cut_off(state, group.session, FinishReason.FAILED, error)
        elif state.now < group.rests_until:
            return
        elif is_too_much(group):
            give_up(state, group)
        elif state.store_reachable:
            enqueue(state, group)

    def _renew(self) -> None:
        state = self.state
        if state.now - self._renewed_at < RENEW_S:
            return
        groups = state.groups.values()
        credit_holds = tuple((group.key, group.credit_on) for group in groups if group.credit_on is not None)
        lease_holds = tuple((group.key, group.lease_on) for group in groups if group.lease_on is not None)
        if credit_holds or lease_holds:
            self._renewed_at = state.now
            state.do(Renew(credit_holds, lease_holds))
        if state.fleet.placement is Placement.CONDITIONAL:
            rebalance_roles(state)


def _fits(state: RouterState, group: Group) -> bool:
    """Some decode worker that takes new work could hold it."""
    return most_blocks(state, group.session, group.num_seqs) <= state.fleet.largest_pool
