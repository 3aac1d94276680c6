"""All that the core knows, and the actions it has decided on so far."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from router.core.actions import Action, ReleaseCredit, ReleaseLease
from router.core.capacity.fleet import Fleet, Worker
from router.core.capacity.fleet_capacity import FleetCapacity
from router.core.dispatch.moves import Move
from router.core.queue.waiting import WaitingGroups
from router.core.session.session import Group, Phase, Session
from scheduling.admission.admission import AdmittedLoad, Decision, Spread
from scheduling.admission.class_shares import ClassShares
from scheduling.admission.learnt import FixedTime, LearntRatios, OutputLengths
from scheduling.admission.length_shares import LengthShares
from scheduling.admission.prediction import Prediction
from scheduling.admission.shares import TenantWeights
from scheduling.admission.shedding import BatchFloor
from scheduling.admission.trials import Trials
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from scheduling.policies.slack import SLACK
from scheduling.request import Slo, SloClass
from scheduling.roles import Roles
from state.records import QueueStatus

EVEN = TenantWeights()
TTFT_SCALE = 64_000.0
"""Ratios are bucketed by powers of two from 64 units on: a millisecond of what was predicted."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What the core is told at its start."""

    router_id: str
    policy: Policy = SLACK
    placement: Placement = Placement.DISAGGREGATED
    queue_capacity: int = 1024
    retention_s: float = 60.0
    max_retained: int = 1024
    weights: TenantWeights = EVEN
    serves_without_store: bool = False
    """Whether newcomers are served by what this router alone knows while the store is away, or refused."""
    no_worker_grace_s: float = 30.0
    """How long an admitted request waits for a worker that could run it, and a newcomer for any decode worker
    after the last one was lost."""


@dataclass(slots=True)
class Counters:
    """Since the router started; as `Counters` in `fleet.proto`."""

    accepted: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    relayed_tokens: int = 0
    retried_attempts: int = 0
    ttft_promises_kept: int = 0
    ttft_promises_broken: int = 0
    shed: int = 0
    promises_given_up: int = 0
    preempted: int = 0
    migrated: int = 0


@dataclass(slots=True)
class Learnt:
    """What admission has learnt from those it admitted."""

    ttft: LearntRatios = field(default_factory=LearntRatios)
    ttft_after_slot: LearntRatios = field(default_factory=LearntRatios)
    """Of those that waited for a decode slot: ends of outputs are harder to foresee than prompts."""
    fixed: FixedTime = field(default_factory=FixedTime)
    tpot: LearntRatios = field(default_factory=LearntRatios)
    lengths: dict[SloClass, OutputLengths] = field(
        default_factory=lambda: {one: OutputLengths() for one in SloClass}
    )
    admitted: AdmittedLoad = field(default_factory=AdmittedLoad)
    by_class: ClassShares = field(default_factory=ClassShares)
    by_length: dict[SloClass, LengthShares] = field(
        default_factory=lambda: {one: LengthShares() for one in SloClass}
    )
    trials: Trials = field(default_factory=Trials)
    virtual_finish: float = 0.0

    def learn_ttft(self, predicted: Prediction, observed_s: float, now: float) -> None:
        """Learn from a request that got its first token `observed_s` after the router's receipt."""
        observed_s -= predicted.waited_s
        if predicted.wait_s == 0:
            bare_s = predicted.ttft_s - predicted.fixed_s
            self.fixed.add(bare_s * TTFT_SCALE, observed_s, bare_s, now)
        learnt = self.ttft_after_slot if predicted.waits_for_slot else self.ttft
        learnt.add(predicted.ttft_s * TTFT_SCALE, observed_s / predicted.ttft_s, now)

    def fixed_s(self, own_s: float, now: float) -> float:
        """Return the time that a first token takes beyond `own_s`, the time to compute its prompt."""
        return self.fixed.seconds(own_s * TTFT_SCALE, now)

    def ttft_spread(self, predicted: Prediction, now: float) -> Spread:
        """What to judge such a prediction by."""
        after_slot = predicted.waits_for_slot and self.ttft_after_slot.knows_enough(now)
        learnt = self.ttft_after_slot if after_slot else self.ttft
        return Spread(*learnt.quantiles(predicted.ttft_s * TTFT_SCALE, now))


IN_QUEUE = (Phase.ENQUEUEING, Phase.WAITING)


class RouterState:
    """Sessions, groups and workers under every name they are looked up by."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.now = 0.0
        self.out: list[Action] = []
        self.fleet = Fleet(config.placement)
        self.live: dict[tuple[str, str], Session] = {}
        self.by_sid: dict[int, Session] = {}
        self.by_listener: dict[int, Session] = {}
        self.retained: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self.groups: dict[str, Group] = {}
        self.waiting = WaitingGroups()
        self.stranded: dict[str, Group] = {}
        self.awaiting: dict[int, Session] = {}
        """By sid, in order of arrival: sessions without groups that wait for a decode worker to come back."""
        self.served_at = float("-inf")
        """When a decode worker that takes new work was last connected."""
        self.untold: set[int] = set()
        """Sessions, by sid, whose prompt log-probabilities are requested and have not all arrived."""
        self.moves: dict[str, Move] = {}
        """By group: what is on its way from a worker that drains."""
        self.capacity = FleetCapacity(self)
        self.counters = Counters()
        self.learnt = Learnt()
        self.queue = QueueStatus(0, 0)
        self.store_reachable = True
        self.to_dequeue: set[str] = set()
        """Left in the queue by groups that ended while the store was away."""
        self.to_release: dict[ReleaseCredit | ReleaseLease, None] = {}
        """An ordered set: what the store did not hear of while it was away."""
        self.batch_floor = BatchFloor()
        self.roles = Roles()
        self.plan_wanted = False
        self.planned_at = float("-inf")
        self.capacity_died = False
        """A worker has gone, or takes nothing new, since a plan last kept every promise."""
        self.made_way_at = float("-inf")
        """When a running group last gave way to one of a higher class."""
        self.leaving = False
        self.chores_set = False
        self.forget_set = False
        self.grants_wanted = False
        self._last_sid = 0
        self._last_handle = 0

    def do(self, action: Action) -> None:
        """Decide on an action."""
        self.out.append(action)

    def next_sid(self) -> int:
        """Names a session within this router."""
        self._last_sid += 1
        return self._last_sid

    def next_handle(self) -> int:
        """Names one attempt of one group on every stream of this router."""
        self._last_handle += 1
        return self._last_handle

    def find(self, tenant: str, request_id: str) -> Session | None:
        """The session of this name, running or remembered."""
        name = (tenant, request_id)
        return self.live.get(name) or self.retained.get(name)

    def open_session(self, session: Session) -> None:
        """Take a session in."""
        self.retained.pop(session.name, None)
        self.live[session.name] = session
        self.by_sid[session.sid] = session
        if session.lacks_prompt_logprobs:
            self.untold.add(session.sid)

    def close_session(self, session: Session, *, remember: bool) -> None:
        """The session is over; a remembered one can still be attached to for a while."""
        del self.live[session.name]
        self.awaiting.pop(session.sid, None)
        self.untold.discard(session.sid)
        if remember:
            self.retained[session.name] = session
            if len(self.retained) > self.config.max_retained:
                _, oldest = self.retained.popitem(last=False)
                self.by_sid.pop(oldest.sid, None)
        else:
            del self.by_sid[session.sid]

    @property
    def forget_at(self) -> float:
        """When the oldest remembered session has been kept long enough; there is one."""
        ended_at = next(iter(self.retained.values())).timeline.ended_at
        assert ended_at is not None, "only what has ended is remembered"
        return ended_at + self.config.retention_s

    def forget_old(self) -> None:
        """Drop sessions whose retention is over."""
        while self.retained and self.forget_at <= self.now:
            _, oldest = self.retained.popitem(last=False)
            self.by_sid.pop(oldest.sid, None)

    def listen(self, listener: int, session: Session, grace_s: float) -> None:
        """Add the call to those that receive the session's events."""
        session.listeners[listener] = grace_s
        self.by_listener[listener] = session

    def unlisten(self, session: Session, listener: int) -> float:
        """Remove the call from those that receive the session's events, and return its grace."""
        del self.by_listener[listener]
        return session.listeners.pop(listener)

    def unlisten_all(self, session: Session) -> None:
        """Nobody hears of the session."""
        for listener in list(session.listeners):
            self.unlisten(session, listener)

    def join(self, worker: Worker) -> None:
        """A worker is connected; grants to it may have been settled while it was not."""
        settling = (group for group in self.groups.values() if group.phase is Phase.SETTLING)
        worker.coming_tokens = sum(one.work_tokens for one in settling if one.prefill_key == worker.key)
        self.fleet.join(worker)

    def promise(self, session: Session, decision: Decision, aim: Slo) -> None:
        """Set what was decided on a session, and the SLO that the fleet aims at for it."""
        waiting = [group for group in session.groups if group in self.waiting]
        for group in waiting:
            self.waiting.remove(group)
        session.decision, session.aim = decision, aim
        for group in waiting:
            self.waiting.add(group, self.now)

    def move(self, group: Group, phase: Phase) -> None:
        """The group goes on to another phase: the one place that does this."""
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
