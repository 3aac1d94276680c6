"""The router's behaviour without any input or output: events in, actions out.

One event at a time; the same events at the same times give the same actions. The shell carries actions out on
asyncio, a simulator in virtual time. A request that goes well:

    Arrived          arrive      a session, its groups, and their places in the queue
    Enqueued         admit       the work ahead is known: accepted with a promise, or refused
    Charged          admit       the same, where others wait and its tenant was charged first
    Granted          grant       a worker has capacity: a decode worker is chosen, a lease asked for
    SettleAnswered   grant       the lease is made: sent to its workers (dispatch)
    StepReported     deliver     tokens, and at last the end (finish)

Each event changes `RouterState`. What is then due is done once per event: a plan, and offers of capacity.
"""

from __future__ import annotations

from router.core import finish, outage
from router.core.admit import on_charged, on_enqueued, on_queue_full, on_quote_asked, plan_if_due
from router.core.arrive import (
    on_arrived,
    on_cancel_asked,
    on_client_gone,
    on_session_timer,
    take_up_awaiting,
)
from router.core.deliver import on_step_reported
from router.core.dispatch import enqueue, leave_queue, most_blocks, strand
from router.core.finish import forget_at, forget_old, leave, stop
from router.core.grant import offer_capacity, on_granted, on_grants_answered, on_settled
from router.core.model.actions import Action, AskQueue, Renew, SendDrain, SetTimer
from router.core.model.events import (
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
from router.core.model.fleet import Fleet, Worker
from router.core.model.session import Group, Phase
from router.core.model.state import CoreConfig, RouterState
from router.core.move import clear, migrate, on_target_lost, preempt_seat
from router.core.outage import serve_stranded
from router.core.recover import give_up, has_failed_too_often, on_worker_back, on_worker_lost, replace_sources
from runtime.state.records import QueueStatus
from scheduling.placement import MixedLoad, Placement, Roles, rebalance

CHORES_S = 0.1
FORGET_S = 1.0
"""Ended requests are kept up to this much longer, so that a busy router forgets many at a time."""
RENEW_S = 1.0
ASK_AGAIN_S = 1.0
"""A place in the queue is asked for again after this long: a grant that got lost took the place with it."""
MOST_ASKED_AGAIN = 20
"""Places asked for again at a time: the more groups wait, the less often each of them asks."""


class RouterCore:
    """All decisions of one router."""

    def __init__(self, config: CoreConfig) -> None:
        self.state = RouterState(config)
        self._chores = Chores(self.state)
        self._chores_set = False
        self._forget_set = False

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event in; `now` is in seconds and never runs backwards."""
        self._begin(now)
        self._handle(event)
        return self._end()

    def _begin(self, now: float) -> None:
        state = self.state
        state.now = now
        if state.fleet.serves:
            state.served_at = now

    def _end(self) -> list[Action]:
        """Do what an event has made due; return all actions that follow from it."""
        state = self.state
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
                state.queue_stands = state.offer_due = True
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
                for worker in state.fleet.workers.values():
                    if worker.facts.worker_id == worker_id and not worker.drain_asked:
                        self._drain(worker)
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
        if key in state.fleet.unheard_drains and not worker.draining:
            self._drain(worker)
        on_worker_back(state, key)
        state.offer_due = True

    def _drain(self, worker: Worker) -> None:
        state = self.state
        state.fleet.drain(worker)
        state.plan_wanted = state.capacity_died = True
        state.actions.append(SendDrain(worker.key))


class Chores:
    """Looks after groups that no event would bring on, ten times a second while there are requests."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._renewed_at = -RENEW_S
        self._fitted_to = 0
        """The version of the fleet that all waiting groups were last seen to fit into."""

    def run(self) -> None:
        """Do everything that is due."""
        state = self._state
        state.plan_wanted = True
        take_up_awaiting(state)
        replace_sources(state)
        for group in list(state.stranded.values()):
            if group.key in state.stranded:
                self._help(group)
        if not state.store_reachable:
            serve_stranded(state)
        for group in state.waiting.take_unconfirmed(state.now, ASK_AGAIN_S, MOST_ASKED_AGAIN):
            enqueue(state, group)
        self._strand_unfit()
        for worker in list(state.fleet.workers.values()):
            if worker.draining:
                clear(state, worker)
            elif worker.preempted:
                migrate(state, worker)
        preempt_seat(state)
        self._renew()
        if not state.store_reachable:
            state.actions.append(AskQueue())
        state.offer_due = True

    def _help(self, group: Group) -> None:
        """Bring a stranded group on its way, or end its session here when no worker has come for it."""
        state = self._state
        if group.stranded_at is not None and not self._fits(group):
            if state.now - group.stranded_at > state.config.no_worker_grace_s:
                finish.no_worker_came(state, group.session)
        elif state.now < group.rests_until:
            return
        elif has_failed_too_often(group):
            give_up(state, group)
        elif state.store_reachable:
            enqueue(state, group)

    def _strand_unfit(self) -> None:
        """Strand groups that wait for a worker that is gone, so that they do not wait for ever."""
        state = self._state
        if self._fitted_to == state.fleet.version:
            return
        self._fitted_to = state.fleet.version
        for group in list(state.waiting):
            if group.session.admitted and not self._fits(group):
                leave_queue(state, group)
                strand(state, group)

    def _fits(self, group: Group) -> bool:
        """Return True if some decode worker that takes new work could hold a group."""
        fleet, session = self._state.fleet, group.session
        pool = fleet.largest_pool_with(session.request.adapter)
        return most_blocks(session, group.num_seqs, fleet.block_size) <= pool

    def _renew(self) -> None:
        """Renew credits and leases once a second, and move the role weights.

        Without anything to renew, the weights are looked at with each of the chores.
        """
        state = self._state
        if state.now - self._renewed_at < RENEW_S:
            return
        groups = state.groups.values()
        credit_holds = tuple((group.key, group.credit_on) for group in groups if group.credit_on is not None)
        lease_holds = tuple((group.key, group.lease_on) for group in groups if group.lease_on is not None)
        if credit_holds or lease_holds:
            self._renewed_at = state.now
            state.actions.append(Renew(credit_holds, lease_holds))
        if state.fleet.placement is Placement.CONDITIONAL:
            state.fleet.roles = _rebalanced(state.fleet, state.now)


def _rebalanced(fleet: Fleet, now: float) -> Roles:
    """Return the fleet's role weights, moved if the fleet has been out of balance for long."""
    mixed = [
        MixedLoad(worker.key, _share(worker.prefill_share), _share(worker.decode_share))
        for worker in fleet.decoding
    ]
    dedicated = [_share(worker.prefill_share) for worker in fleet.prefilling]
    return rebalance(fleet.roles, mixed, dedicated, now)


def _share(average: float) -> float:
    """Return the average within 0 and 1: sums of roundings may leave that range slightly."""
    return min(1.0, max(0.0, average))
