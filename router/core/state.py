"""All that the core knows, and the actions it has decided on so far.

`RouterState` belongs to the handlers of events.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from router.core.actions import Action, ReleaseCredit, ReleaseLease
from router.core.capacity.fleet import Fleet, Worker
from router.core.capacity.fleet_capacity import FleetCapacity
from router.core.dispatch.choice import WorkerChoice
from router.core.queue.waiting import WaitingGroups
from router.core.session.session import IN_QUEUE, Group, Move, Phase, Session
from scheduling.admission.admission import Decision
from scheduling.admission.class_shares import BatchFloor
from scheduling.admission.learnt import Learnt
from scheduling.admission.shares import TenantWeights
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from scheduling.policies.slack import SLACK
from scheduling.request import Slo
from state.records import QueueStatus

EVEN = TenantWeights()


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings of one core."""

    router_id: str
    policy: Policy = SLACK
    placement: Placement = Placement.DISAGGREGATED
    queue_capacity: int = 1024
    retention_s: float = 60.0
    max_retained: int = 1024
    weights: TenantWeights = EVEN
    serves_without_store: bool = False
    """While the store is away, newcomers are served by what this router alone knows; otherwise refused."""
    no_worker_grace_s: float = 30.0
    """How long to wait for a decode worker that was lost; no flag sets it. It bounds two waits:

    - an admitted group that no connected worker could hold, from when it is stranded (`chores.py`)
    - a newcomer that finds no decode worker at all, from when the last one was lost (`admission/admit.py`)
    """


@dataclass(slots=True)
class Counters:
    """Counts since the router started: the message `Counters` of `fleet.proto`."""

    accepted: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    relayed_tokens: int = 0
    retried_attempts: int = 0
    ttft_promises_kept: int = 0
    ttft_promises_broken: int = 0


class RouterState:
    """Sessions, groups and workers under every name they are looked up by."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.now = 0.0
        self.actions: list[Action] = []
        self.counters = Counters()

        # Sessions and groups
        self.live: dict[tuple[str, str], Session] = {}
        self.by_sid: dict[int, Session] = {}
        self.by_listener: dict[int, Session] = {}
        self.retained: OrderedDict[tuple[str, str], Session] = OrderedDict()
        """Sessions that have ended, oldest first."""
        self.awaiting: dict[int, Session] = {}
        """Sessions without groups that wait for a decode worker to come back, in order of arrival, by sid."""
        self.lacking_logprobs: set[int] = set()
        """Sessions, by sid, whose prompt log-probabilities are requested and have not all arrived."""
        self.groups: dict[str, Group] = {}
        self.waiting = WaitingGroups()
        self.stranded: dict[str, Group] = {}
        self.moves: dict[str, Move] = {}
        """The moves away from draining workers, by group key."""

        # Workers, and the decisions about them
        policy = config.policy
        self.fleet = Fleet(config.placement)
        self.learnt = Learnt()
        self.capacity = FleetCapacity(policy, self.fleet, self.learnt.tpot)
        self.choice = WorkerChoice(policy, self.fleet, self.capacity, self.learnt)
        self.batch_floor = BatchFloor()
        self.served_at = float("-inf")
        """When a decode worker that takes new work was last connected."""
        self.seat_taken_at = float("-inf")
        """When a running group last lost its seat to a group of a higher class."""

        # The store
        self.queue = QueueStatus(0, 0)
        self.store_reachable = True
        self.must_take_holds = False
        """The store has forgotten what is held, and could not be told."""
        self.to_dequeue: set[str] = set()
        """Places in the queue of groups that ended while the store was away."""
        self.to_release: dict[ReleaseCredit | ReleaseLease, None] = {}
        """An ordered set: releases that the store missed while it was away."""

        # What is due after this event
        self.offer_due = False
        """Capacity came free, or something new waits for it: offer free capacity to the queue."""
        self.plan_wanted = False
        self.planned_at = float("-inf")
        self.capacity_died = False
        """A worker has gone, or takes nothing new, since a plan last kept every promise."""
        self.leaving = False

        self._last_sid = 0
        self._last_handle = 0

    def next_sid(self) -> int:
        """Return a new name for a session within this router."""
        self._last_sid += 1
        return self._last_sid

    def next_handle(self) -> int:
        """Return a new name for one attempt of one group on every stream of this router."""
        self._last_handle += 1
        return self._last_handle

    # Sessions

    def find(self, tenant: str, request_id: str) -> Session | None:
        """Return the session of this name, running or remembered."""
        name = (tenant, request_id)
        return self.live.get(name) or self.retained.get(name)

    def open_session(self, session: Session, listener: int, grace_s: float) -> None:
        """Add a session with the call that it came by."""
        name = session.name
        self.retained.pop(name, None)
        self.live[name] = session
        self.by_sid[session.sid] = session
        if session.lacks_prompt_logprobs:
            self.lacking_logprobs.add(session.sid)
        self.listen(listener, session, grace_s)

    def close_session(self, session: Session, *, remember: bool) -> None:
        """End a session; calls can still attach to a remembered one for a while."""
        del self.live[session.name]
        self.awaiting.pop(session.sid, None)
        self.lacking_logprobs.discard(session.sid)
        if remember:
            self.retained[session.name] = session
            if len(self.retained) > self.config.max_retained:
                _, oldest = self.retained.popitem(last=False)
                self.by_sid.pop(oldest.sid, None)
        else:
            del self.by_sid[session.sid]

    @property
    def forget_at(self) -> float:
        """Return when the oldest remembered session has been kept long enough; there is one."""
        ended_at = next(iter(self.retained.values())).timeline.ended_at
        assert ended_at is not None, "only what has ended is remembered"
        return ended_at + self.config.retention_s

    def forget_old(self) -> None:
        """Drop sessions whose retention is over."""
        while self.retained and self.forget_at <= self.now:
            _, oldest = self.retained.popitem(last=False)
            self.by_sid.pop(oldest.sid, None)

    def listen(self, listener: int, session: Session, grace_s: float) -> None:
        """Add a call to those that receive the session's events."""
        session.listeners[listener] = grace_s
        self.by_listener[listener] = session

    def unlisten(self, session: Session, listener: int) -> float:
        """Remove a call from those that receive the session's events, and return its grace."""
        del self.by_listener[listener]
        return session.listeners.pop(listener)

    def unlisten_all(self, session: Session) -> None:
        """Remove all calls of the session."""
        for listener in list(session.listeners):
            self.unlisten(session, listener)

    # Groups

    def promise(self, session: Session, decision: Decision, aim: Slo) -> None:
        """Set what was decided on a session, and the SLO that the fleet aims at for it."""
        waiting = [group for group in session.groups if group.phase in IN_QUEUE]
        for group in waiting:
            self.waiting.remove(group)
        session.decision, session.aim = decision, aim
        for group in waiting:
            self.waiting.add(group, self.now)

    def move(self, group: Group, phase: Phase) -> None:
        """Take a group to another phase; nothing else sets a phase."""
        was_waiting, waits = group.phase in IN_QUEUE, phase in IN_QUEUE
        if group.phase is Phase.SETTLING:
            self.fleet.expect(group.prefill_key, -group.work_tokens)
        if phase is Phase.SETTLING:
            self.fleet.expect(group.prefill_key, group.work_tokens)
        group.phase = phase
        if waits and not was_waiting:
            self.waiting.add(group, self.now)
        elif was_waiting and not waits:
            self.waiting.remove(group)
        if phase is Phase.STRANDED:
            self.stranded[group.key] = group
        else:
            self.stranded.pop(group.key, None)

    def release_credit(self, group: Group) -> None:
        """Return the group's prompt credit, once: the prompt is computed, or the attempt is over."""
        if group.credit_on is not None:
            self.actions.append(ReleaseCredit(group.key, group.credit_on))
            group.credit_on = None
            self.offer_due = True

    def release(self, group: Group) -> None:
        """Return all that the group holds of the store, once."""
        self.release_credit(group)
        if group.lease_on is not None:
            self.actions.append(ReleaseLease(group.key, group.lease_on))
            group.lease_on = None
            self.offer_due = True

    # Workers

    def join(self, worker: Worker) -> None:
        """Add a worker; grants to it may have been settled while it was not connected."""
        settling = (group for group in self.groups.values() if group.phase is Phase.SETTLING)
        worker.coming_tokens = sum(group.work_tokens for group in settling if group.prefill_key == worker.key)
        self.fleet.join(worker)

    def lose_capacity(self) -> None:
        """Want a plan, since a worker is gone or takes nothing new."""
        self.plan_wanted = self.capacity_died = True
